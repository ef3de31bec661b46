/** The ledgers of all gateways of a site, as one. */
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { KeyStore, openLedgerReader } from '../../ledger/index.ts';
import { listGatewayFolders } from '../../spec/gateway-folders.ts';
import { gatewayFiles, type StateLayout } from '../../spec/state-layout.ts';
import { addUsage, type UsageQuery, type UsageRow } from '../../spec/usage.ts';

/** Paths of the ledgers that there are; of the first gateway's where there is none, so that opening it says so. */
export function ledgersOf({ root, gateway_folder }: Pick<StateLayout, 'root' | 'gateway_folder'>): string[] {
  const found = listGatewayFolders(root)
    .map(({ folder }) => join(folder, gatewayFiles.ledger))
    .filter((path) => existsSync(path));
  return found.length > 0 ? found : [join(gateway_folder, gatewayFiles.ledger)];
}

/** Sums over ledgers. @throws E_LEDGER_MISSING, E_LEDGER_VERSION, E_LEDGER_DAMAGED, E_LEDGER_BUSY */
export function sumUsage(ledgers: readonly string[], query: UsageQuery): UsageRow[] {
  return addUsage(
    ledgers.map((path) => {
      const reader = openLedgerReader(path);
      try {
        return reader.usage(query);
      } finally {
        reader.close();
      }
    }),
  );
}

/** The same, where keys have their names beside their ids. */
export async function namedUsage(
  ledgers: readonly string[],
  query: UsageQuery,
  keys_folder: string,
): Promise<UsageRow[]> {
  const usage = sumUsage(ledgers, query);
  if (!query.group_by.includes('key')) return usage;
  const names = new Map((await KeyStore.read(keys_folder)).map(({ id, name }) => [id, name]));
  return usage.map((row) => {
    const key_name = names.get(row.group.key!);
    return key_name === undefined ? row : { ...row, key_name };
  });
}
