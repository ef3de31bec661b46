import { describe, expect, it } from 'vitest';
import { buildOpenTela, isLoopbackAlone } from '../../../bench/routers/opentela.ts';

describe('a machine on which OpenTela may run', () => {
  it('reaches nobody but itself', () => {
    expect(isLoopbackAlone({ lo: [{ internal: true }, { internal: true }] })).toBe(true);
    expect(isLoopbackAlone({})).toBe(true);
    expect(isLoopbackAlone({ lo: [{ internal: true }], eth0: [{ internal: false }] })).toBe(false);
  });
});

it('OpenTela cannot be built from what is no checkout of it', () => {
  expect(() => buildOpenTela('/nowhere', '/nowhere', () => undefined)).toThrow(
    /Go, which is not here|cannot be built from \/nowhere/,
  );
});
