import { randomBytes } from 'node:crypto';
import { chmodSync, existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { makePrivateFolder } from '../host/make-folders.ts';
import { identityOf } from '../host/process-identity.ts';
import { writeFileAtomically } from '../host/whole-file.ts';
import { HpcserveError } from '../spec/errors/error.ts';
import { type GatewayEndpoint, gatewayFiles, type TakenPort } from '../spec/state-layout.ts';

/** Makes the gateway's folder, for its owner alone. Throws E_GATEWAY_FOLDER. */
export function prepareFolder(folder: string): void {
  guarded(folder, () => makePrivateFolder(folder));
}

/** Where the last gateway answered; undefined where none has run. */
export function readEndpoint(folder: string): GatewayEndpoint | undefined {
  const path = join(folder, gatewayFiles.endpoint);
  try {
    const endpoint = JSON.parse(readFileSync(path, 'utf8')) as GatewayEndpoint;
    return Number.isInteger(endpoint.port) ? endpoint : undefined;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT' || error instanceof SyntaxError) return undefined;
    throw folderError(path, error);
  }
}

export function writeEndpoint(folder: string, endpoint: GatewayEndpoint): void {
  replaceFile(join(folder, gatewayFiles.endpoint), `${JSON.stringify(endpoint, null, 2)}\n`);
}

export function writeTakenPort(folder: string, taken: TakenPort): void {
  replaceFile(join(folder, gatewayFiles.taken_port), `${JSON.stringify(taken)}\n`);
}

/**
 * A new process holds the gateway's sockets: the one that control knew is gone. Where control knows none, none is told.
 */
export function writeHolder(folder: string, pid: number): void {
  const path = join(folder, gatewayFiles.process);
  const started = startOf(pid);
  if (started && existsSync(path)) replaceFile(path, `${JSON.stringify({ pid, ...started })}\n`);
}

/** What tells a process from a later one of its number; undefined where it is gone. */
export function startOf(pid: number): GatewayEndpoint['process'] {
  const identity = identityOf(pid);
  return identity && { start_ticks: identity.start_ticks, boot_id: identity.boot_id };
}

/** The secret of the admin paths, made once and kept over restarts. */
export function adminToken(folder: string): string {
  const path = join(folder, gatewayFiles.admin_token);
  try {
    const token = readFileSync(path, 'utf8').trim();
    if (token.length >= 32) {
      chmodSync(path, 0o600);
      return token;
    }
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'ENOENT') throw folderError(path, error);
  }
  const token = randomBytes(32).toString('base64url');
  replaceFile(path, `${token}\n`);
  return token;
}

function replaceFile(path: string, text: string): void {
  guarded(path, () => writeFileAtomically(path, text));
}

function guarded(path: string, action: () => void): void {
  try {
    action();
  } catch (error) {
    throw folderError(path, error);
  }
}

function folderError(path: string, error: unknown): HpcserveError {
  return new HpcserveError('E_GATEWAY_FOLDER', {
    what: `cannot use ${path}`,
    because: (error as Error).message,
    cause: error,
  });
}
