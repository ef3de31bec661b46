/**
 * What differs from device to device stands in `agent/backend/`, and which devices there are is found out in
 * `agent/devices/`: elsewhere in the worker nothing asks by name whose backend computes.
 */
import ts from 'typescript';
import type { StyleRule } from '../rule.ts';
import { findingsOf } from '../walk.ts';

const asks = /^\/?\^?(cuda|rocm|hip|vulkan|metal|sycl|musa|cann|opencl|llvmpipe)(\d+|\\d[+*]?)?\$?(\/\w*)?$/i;
const places = ['agent/backend/', 'agent/devices/'];

export const deviceKind: StyleRule = {
  name: 'device-kind',
  instead: 'put what differs behind `Backend` (agent/backend/backend.ts)',
  find: (files) =>
    findingsOf(
      files.filter(
        ({ path }) => path.startsWith('agent/') && !places.some((place) => path.startsWith(place)),
      ),
      (node) =>
        (ts.isStringLiteralLike(node) && asks.test(node.text)) ||
        (ts.isRegularExpressionLiteral(node) && asks.test(node.text))
          ? node.getText()
          : undefined,
    ),
};
