/**
 * A bound is named after what it bounds, with `_max` or `_min` behind it: `nodes_max`, `tick_ms_min`, `wait_max_s`. So
 * the bounds of a thing stand beside the thing. A function is named by its verb (`minBy`), a type by its noun.
 */
import { declaredName } from '../declared-names.ts';
import type { StyleRule } from '../rule.ts';
import { findingsOf } from '../walk.ts';
import { foreignNames } from './foreign-names.ts';

const wrong = /^(max|min)(_|[A-Z])|^(MAX|MIN)_|[a-z0-9](Max|Min)(?![a-z])/;

export const bounds: StyleRule = {
  name: 'bounds',
  instead: 'a bound is `x_max` or `x_min`, not `maxX`, `max_x`, `xMax` or `MAX_X`',
  find: (files) =>
    findingsOf(files, (node) => {
      const name = declaredName(node);
      if (name?.kind !== 'value' || foreignNames.has(name.text)) return undefined;
      return wrong.test(name.text) ? name.text : undefined;
    }),
};
