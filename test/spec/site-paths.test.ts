import { describe, expect, it } from 'vitest';
import { expandSitePath } from '../../spec/site-paths.ts';

describe('paths of site configs', () => {
  const environment = { HOME: '/home/ada', SCRATCH: '/scratch/ada' };

  it.each([
    ['~', '/home/ada'],
    ['~/models', '/home/ada/models'],
    ['$SCRATCH/a', '/scratch/ada/a'],
    ['/data/~old', '/data/~old'],
  ])('%s is %s', (text, expected) => {
    expect(expandSitePath(text, environment)).toBe(expected);
  });

  it.each(['~grace/models', '~grace'])(
    '%s, the home of somebody else, is refused with what to write',
    (text) => {
      expect(() => expandSitePath(text, environment)).toThrowError(
        expect.objectContaining({
          code: 'E_CONFIG_UNSUPPORTED',
          message: expect.stringContaining(text),
          try: expect.arrayContaining([expect.stringContaining('echo ~grace')]),
        }),
      );
    },
  );
});
