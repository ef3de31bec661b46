/** Processes of a user whom the system does not know: its uid has no entry in the user database. */
import { spawnSync } from 'node:child_process';
import { chownSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { packageRoot } from '../../host/package-root.ts';

const root = process.getuid?.() === 0;
/** Of nobody on this machine. */
const uid = 61_234;

interface Ended {
  status: number | null;
  stdout: string;
  stderr: string;
}

/** A real process under that uid, with these variables and no others but PATH. */
function asStranger(argv: readonly string[], environment: Record<string, string>): Ended {
  const [program = '', ...args] = [
    ...['setpriv', `--reuid=${uid}`, `--regid=${uid}`, '--clear-groups', '--'],
    ...[process.execPath, ...argv],
  ];
  return spawnSync(program, args, {
    cwd: '/',
    env: { PATH: '/usr/bin:/bin', ...environment },
    encoding: 'utf8',
  });
}

function answerOf(call: string, environment: Record<string, string>): unknown {
  const module = JSON.stringify(join(packageRoot, 'dist/host/own-user.js'));
  const code = `
    const user = await import(${module});
    const answer = () => { try { return ${call}; } catch (error) { return { code: error.code, ...error.toJSON?.() }; } };
    process.stdout.write(JSON.stringify(answer()));
  `;
  const { stdout, stderr } = asStranger(['--input-type=module', '-e', code], environment);
  expect(stderr).toBe('');
  return JSON.parse(stdout);
}

describe.skipIf(!root)('a uid without an entry', () => {
  let home: string;
  beforeAll(() => {
    home = mkdtempSync(join(tmpdir(), 'hpcserve-own-user-'));
    chownSync(home, uid, uid);
  });
  afterAll(() => rmSync(home, { recursive: true, force: true }));

  it('has the name that the environment says, unless another on this machine has it, else its number', () => {
    expect(answerOf('user.ownUser()', { USER: 'ada' })).toEqual({
      uid,
      name: 'ada',
      named_by: 'environment',
    });
    const nobody = { uid, name: `${uid}`, named_by: 'uid' };
    expect(answerOf('user.ownUser()', {})).toEqual(nobody);
    // As `setpriv` and `su` without a login leave it.
    expect(answerOf('user.ownUser()', { USER: 'root', LOGNAME: 'root' })).toEqual(nobody);
    expect(answerOf('user.ownUser()', { USER: 'a b' })).toEqual(nobody);
  });

  it('is told what to do where a name or a home is needed', () => {
    expect(answerOf("user.ownUserName('login1 by ssh', 'set slurm.ssh.user')", {})).toMatchObject({
      code: 'E_USER_UNKNOWN',
      what: 'login1 by ssh needs your user name, which is not known',
      because: [expect.stringContaining(`no entry for uid ${uid}`), expect.stringContaining('USER')],
      try: ['set slurm.ssh.user', 'or set USER'],
    });
    expect(answerOf("user.ownUserName('login1 by ssh', '')", { LOGNAME: 'ada' })).toBe('ada');
    expect(answerOf('user.homeFolder()', { HOME: '/some/where' })).toBe('/some/where');
    expect(answerOf('user.homeFolder()', {})).toMatchObject({ code: 'E_USER_UNKNOWN' });
  });

  it('types commands', () => {
    const hpcserve = (...argv: string[]): Ended =>
      asStranger([join(packageRoot, 'cli/hpcserve.mjs'), '--site', 'local', ...argv], { HOME: home });
    const { status, stdout, stderr } = hpcserve('provider', '--json');
    expect(stderr).toBe('');
    expect(JSON.parse(stdout)).toMatchObject({ name: `${uid}@local` });
    expect(status).toBe(0);
    expect(hpcserve('status')).toMatchObject({ status: 0, stderr: expect.not.stringContaining('E_') });
  });
});

it('a user with an entry has the name of the entry, whatever the environment says', () => {
  const code = `
    const { ownUser } = await import(${JSON.stringify(join(packageRoot, 'dist/host/own-user.js'))});
    process.stdout.write(ownUser().name);
  `;
  const { stdout } = spawnSync(process.execPath, ['--input-type=module', '-e', code], {
    env: { ...process.env, USER: 'somebody-else', LOGNAME: 'somebody-else' },
    encoding: 'utf8',
  });
  expect(stdout).toBe(spawnSync('id', ['-un'], { encoding: 'utf8' }).stdout.trim());
});
