/** Providers with keys of their own, for sessions that a test stands up itself. */
import { join } from 'node:path';
import {
  type CurrentDelegation,
  type Delegation,
  gateway_scope,
  launchScope,
  ProviderKey,
} from '../../mesh/index.ts';

export interface TestProvider {
  key: ProviderKey;
  name: string;
  /** Fingerprint. */
  id: string;
  /** What a gateway of this provider proves itself with. */
  gateway: CurrentDelegation;
  /** What a job of this provider gets; it ends in two days unless told otherwise. */
  launch(launch_id: string, ends_in_s?: number): Delegation;
}

/** @param folder where its key lies, or is made */
export function testProvider(folder: string, name: string): TestProvider {
  const key = ProviderKey.loadOrCreate(providerKeyFileOf(folder, name));
  const delegate = (scope: string, ends_in_s = 172_800): Delegation =>
    key.delegate({ name, scope, not_after_s: Math.floor(Date.now() / 1000) + ends_in_s });
  const gateway = delegate(gateway_scope);
  return {
    key,
    name,
    id: key.id,
    gateway: () => gateway,
    launch: (launch_id, ends_in_s) => delegate(launchScope(launch_id), ends_in_s),
  };
}

export function providerKeyFileOf(folder: string, name: string): string {
  return join(folder, `${encodeURIComponent(name)}.key`);
}
