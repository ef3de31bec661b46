/** Errors that Node has no name for, in the two forms in which it gives them. */
import { expect, it } from 'vitest';
import { HpcserveError } from '../../spec/errors/error.ts';
import { systemCode, systemMessage } from '../../spec/errors/system-error.ts';

const failed = (code: string, errno: number, message: string): Error =>
  Object.assign(new Error(message), { code, errno, path: '/home/ada/.x.tmp' });
const nameless = [
  failed('UNKNOWN', -122, "UNKNOWN: unknown error, open '/home/ada/.x.tmp'"),
  failed(
    'Unknown system error -122',
    -122,
    "Unknown system error -122: Unknown system error -122, open '/home/ada/.x.tmp'",
  ),
];

it.each(nameless)('a full quota has its name, in messages too: %s', (error) => {
  expect(systemCode(error)).toBe('EDQUOT');
  expect(systemMessage(error)).toBe("EDQUOT: disk quota exceeded, open '/home/ada/.x.tmp'");
});

it.each(nameless)('whoever passes it on says quota, and how to see it: %s', (error) => {
  const passed = new HpcserveError('E_MODEL_DISK', {
    what: 'it cannot be written',
    because: error.message,
    try: 'choose another folder',
    cause: error,
  });
  expect(passed.because).toEqual([systemMessage(error)]);
  expect(passed.try).toEqual([
    expect.stringMatching(/quota -s .*lfs quota -h \/home\/ada\)/),
    expect.stringMatching(/state_dir.*models_dir/),
    'choose another folder',
  ]);
  expect(HpcserveError.from(error).toText()).toMatch(
    /^error: \/home\/ada\/\.x\.tmp: your quota on that filesystem is used up \[E_FILESYSTEM\]/,
  );
});

it('names that Node knows, and what is no error of the system, stay as they are', () => {
  const full = failed('ENOSPC', -28, 'ENOSPC: no space left on device, write');
  expect([systemCode(full), systemMessage(full)]).toEqual(['ENOSPC', full.message]);
  expect(systemCode(failed('UNKNOWN', -4094, 'UNKNOWN: unknown error, read'))).toBe('UNKNOWN');
  expect([systemCode(new Error('no')), systemCode(undefined)]).toEqual([undefined, undefined]);
});
