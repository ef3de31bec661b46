/** The person's key for a gateway: kept, or not made at all. */
import { existsSync, mkdirSync, readdirSync, readFileSync, statSync, symlinkSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { GatewayAdmin } from '../../../control/gateway/admin.ts';
import { ensureGatewayAndKey } from '../../../control/gateway/gateway.ts';
import { readAdminToken, stopGatewayProcess } from '../../../control/gateway/process.ts';
import { type Operations, openOperations } from '../../../control/runner/operations.ts';
import { CredentialFile } from '../../../control/state/credentials.ts';
import { site, temporaryStore } from '../support.ts';

let place: ReturnType<typeof temporaryStore>;
let operations: Operations;
beforeEach(() => {
  place = temporaryStore();
  const { layout } = place.store;
  operations = openOperations({
    loaded: { site, path: '/site.yaml', layout, provenance: () => undefined } as Operations['loaded'],
    facts: { user: 'someone', environment: {} },
    command: 'test',
    now_ms: Date.now,
    emit: () => {},
    signal: new AbortController().signal,
  });
  operations.store.prepareSite();
});
afterEach(async () => {
  await stopGatewayProcess(place.store.layout);
  place.dispose();
});

/** Of each key that the gateway knows, whether it was revoked. */
async function keysRevoked(credentials: CredentialFile): Promise<boolean[]> {
  const { layout } = place.store;
  const kept = new CredentialFile(join(place.folder, 'config', 'credentials.json'));
  const { endpoint } = await ensureGatewayAndKey(operations, kept);
  const own = kept.find({ gateway_folder: layout.gateway_folder })!.key_id;
  expect(credentials.find({ gateway_folder: layout.gateway_folder })).toBeUndefined();
  const keys = await new GatewayAdmin(endpoint, readAdminToken(layout)).listKeys();
  return keys.flatMap(({ id, revoked_at_ms }) => (id === own ? [] : revoked_at_ms !== undefined));
}

it('is not made where it could not be kept', async () => {
  const config = join(place.folder, 'nowhere');
  symlinkSync(join(place.folder, 'not', 'there'), config);
  const credentials = new CredentialFile(join(config, 'credentials.json'));
  for (let deploy = 0; deploy < 2; deploy++)
    await expect(ensureGatewayAndKey(operations, credentials)).rejects.toThrow(/ENOENT|EEXIST/);
  expect(await keysRevoked(credentials)).toEqual([]);
}, 60_000);

/** As a disk that is full from the moment on in which the key was made. */
class FullDisk extends CredentialFile {
  override save(): never {
    throw Object.assign(new Error('ENOSPC: no space left on device, write'), { code: 'ENOSPC' });
  }
}

it('is revoked where it cannot be kept after all', async () => {
  const credentials = new FullDisk(join(place.folder, 'full', 'credentials.json'));
  await expect(ensureGatewayAndKey(operations, credentials)).rejects.toThrow('ENOSPC');
  expect(await keysRevoked(credentials)).toEqual([true]);
}, 60_000);

it('is kept for its owner alone, and nothing lies beside it', async () => {
  const config = join(place.folder, 'own');
  mkdirSync(config);
  const path = join(config, 'credentials.json');
  const { key } = await ensureGatewayAndKey(operations, new CredentialFile(path));
  expect(readdirSync(config)).toEqual(['credentials.json']);
  expect(statSync(path).mode & 0o777).toBe(0o600);
  expect(readFileSync(path, 'utf8')).toContain(key);
  expect(await ensureGatewayAndKey(operations, new CredentialFile(path))).toMatchObject({ key });
  expect(existsSync(`${path}.try`)).toBe(false);
}, 60_000);
