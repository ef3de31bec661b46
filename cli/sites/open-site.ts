/**
 * How a command is run at a site: on this machine as a process of its own, over ssh on the login node. The words, the
 * answers and the errors are the same.
 */
import { spawn } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { z } from 'zod';
import { sourcesFromHere } from '../../control/sites/model-file.ts';
import { atSite, type SiteCommands } from '../../control/sites/site-commands.ts';
import { understood } from '../../control/sites/site-output.ts';
import { findingOf } from '../../control/state/findings.ts';
import type { LoadedSite } from '../../control/state/site-files.ts';
import { makeFolders } from '../../host/make-folders.ts';
import { writeFileAtomically } from '../../host/whole-file.ts';
import { type ErrorJson, HpcserveError } from '../../spec/errors/error.ts';
import { sharesFolder } from '../../spec/state-layout.ts';
import type { CliContext } from '../context.ts';
import { openRemoteSite } from '../remote/remote-site.ts';
import { UploadSet } from '../remote/upload-set.ts';

/** Until it is closed. */
export interface OpenSite extends SiteCommands {
  close(): void;
}

/** @throws E_SSH_…, E_REMOTE_PROGRAM */
export async function openSiteCommands(context: CliContext, loaded: LoadedSite): Promise<OpenSite> {
  try {
    return loaded.site.slurm?.ssh === undefined
      ? onThisMachine(context, loaded)
      : await overSsh(context, loaded);
  } catch (error) {
    throw atSite(loaded.site.name, error);
  }
}

interface Ended {
  code: number | null;
  stdout: string;
  stderr: string;
}

function onThisMachine(context: CliContext, loaded: LoadedSite): OpenSite {
  const { name } = loaded.site;
  const folder = sharesFolder(loaded.layout);
  const scratch = mkdtempSync(join(tmpdir(), 'hpcserve-sites-'));
  const state = context.configuration.winner('state_dir');
  // The program that this process runs.
  const program = [...process.execArgv, process.argv[1]!];
  const place = [
    '--site',
    loaded.path,
    ...(state?.layer === 'flag' ? ['--state-dir', String(state.value)] : []),
  ];
  return {
    name,
    bringFile: async (path) => path,
    bringShare: async (path, file, text) => {
      makeFolders(folder);
      const share = join(folder, `${file}.yaml`);
      writeFileAtomically(share, sourcesFromHere(path, text));
      return share;
    },
    bringPlan: async (file, text) => {
      const plan = join(scratch, `${file}.plan.json`);
      writeFileSync(plan, text, { mode: 0o600 });
      return plan;
    },
    run: async (argv, onLine) =>
      answerOf(name, await runProcess(context, [...program, ...argv, '--json', ...place], linesTo(onLine))),
    show: async (argv) => answerOf(name, await runProcess(context, [...program, ...argv, ...place])),
    close: () => rmSync(scratch, { recursive: true, force: true }),
  };
}

async function overSsh(context: CliContext, loaded: LoadedSite): Promise<OpenSite> {
  const { name } = loaded.site;
  const { connection, program, folder } = await openRemoteSite(context, loaded.site);
  const uploads = new UploadSet(connection, folder, context);
  const close = (): void => {
    uploads[Symbol.dispose]();
    connection.close();
  };
  try {
    const site = await uploads.site(loaded.path);
    return {
      name,
      host: connection.target.host,
      bringFile: (path) => uploads.deployment(path),
      bringShare: (path, _file, text) => uploads.deployment(path, text),
      bringPlan: (file, text) => uploads.text(`${file}.plan.json`, text),
      run: async (argv, onLine) => {
        const tell = linesTo(onLine);
        const ended = await connection.exec([...program, ...argv, '--json', '--site', site], {
          ...(tell ? { onStdout: tell } : {}),
          signal: context.signal,
        });
        return answerOf(name, ended);
      },
      show: async (argv) =>
        answerOf(
          name,
          await connection.exec([...program, ...argv, '--site', site], { signal: context.signal }),
        ),
      close,
    };
  } catch (error) {
    close();
    throw error;
  }
}

function runProcess(
  { environment, working_folder, signal }: CliContext,
  argv: readonly string[],
  onStdout?: (text: string) => void,
): Promise<Ended> {
  return new Promise((resolve, reject) => {
    // In a process group of its own: Ctrl-C reaches it once, from here.
    const child = spawn(process.execPath, argv, {
      cwd: working_folder,
      env: environment,
      stdio: ['ignore', 'pipe', 'pipe'],
      detached: true,
    });
    const out = { stdout: '', stderr: '' };
    child.stdout.setEncoding('utf8').on('data', (text: string) => {
      out.stdout += text;
      onStdout?.(text);
    });
    child.stderr.setEncoding('utf8').on('data', (text: string) => {
      out.stderr += text;
    });
    const interrupt = (): void => void child.kill('SIGINT');
    if (signal.aborted) interrupt();
    signal.addEventListener('abort', interrupt, { once: true });
    child.once('error', reject);
    child.once('close', (code) => {
      signal.removeEventListener('abort', interrupt);
      resolve({ code, ...out });
    });
  });
}

/** Tells whole lines of text that comes in pieces. */
function linesTo(onLine: ((line: string) => void) | undefined): ((text: string) => void) | undefined {
  if (onLine === undefined) return undefined;
  let rest = '';
  return (text) => {
    const lines = `${rest}${text}`.split('\n');
    rest = lines.pop()!;
    for (const line of lines) onLine(line);
  };
}

/** @throws the error that the command ended with, with the site's name before it */
function answerOf(site: string, { code, stdout, stderr }: Ended): string {
  if (code === 0) return stdout;
  throw atSite(
    site,
    errorIn(site, stderr) ??
      new HpcserveError('E_SITES_PARTLY', {
        what: `a command ended with ${code === null ? 'a signal' : `exit code ${code}`}`,
        because: stderr.trim().split('\n').slice(-5),
      }),
  );
}

const failureSchema = z.object({
  error: z.object({
    code: z.string(),
    what: z.string(),
    because: z.array(z.string()),
    try: z.array(z.string()),
    details: z.record(z.string(), z.unknown()),
  }),
}) satisfies z.ZodType<{ error: ErrorJson }>;

/** The last words of a command that failed, with --json and without; undefined where they are those of a shell. */
function errorIn(site: string, stderr: string): HpcserveError | undefined {
  const last = stderr.trimEnd().split('\n').at(-1)!;
  if (last.startsWith('{"error":'))
    return HpcserveError.fromJSON(understood(site, failureSchema, last).error);
  const text = /^error: .* \[(E_[A-Z0-9_]+)\]$/m.exec(stderr);
  if (text === null) return undefined;
  return HpcserveError.fromJSON({ code: text[1]!, ...findingOf(stderr.slice(text.index))!, details: {} });
}
