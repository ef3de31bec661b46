/** The files by which a keeper and the gateways of its site tell each other of demand: `spec/scaling-statement.ts`. */
import { rmSync } from 'node:fs';
import { join } from 'node:path';
import { makeFolders } from '../../../host/make-folders.ts';
import { readJsonIfThere, writeFileAtomically } from '../../../host/whole-file.ts';
import { listGatewayFolders } from '../../../spec/gateway-folders.ts';
import {
  heardStatementsSchema,
  type KeeperStatement,
  type ScalingStatement,
} from '../../../spec/scaling-statement.ts';
import { gatewayFiles, keeperFiles, type StateLayout } from '../../../spec/state-layout.ts';

export interface Heard {
  /** What gateways of the site publish now; absent: none does. */
  own?: ScalingStatement;
  /** The newest of each other site. */
  sites: ReadonlyMap<string, ScalingStatement>;
}

/** What the gateways of the site heard; a file that cannot be read is as if it were not there. */
export function readHeard({ root }: StateLayout): Heard {
  const sites = new Map<string, ScalingStatement>();
  let own: ScalingStatement | undefined;
  for (const { folder } of listGatewayFolders(root)) {
    const file = readOne(join(folder, gatewayFiles.sites_scaling));
    if (file?.own && file.own.at > (own?.at ?? -1)) own = file.own;
    for (const { site, statement } of file?.heard ?? [])
      if (statement.at > (sites.get(site)?.at ?? -1)) sites.set(site, statement);
  }
  return own ? { own, sites } : { sites };
}

function readOne(path: string) {
  try {
    return heardStatementsSchema.safeParse(readJsonIfThere(path), { jitless: true }).data;
  } catch (error) {
    if (!(error instanceof SyntaxError) && (error as NodeJS.ErrnoException).code === undefined) throw error;
    return undefined;
  }
}

/** @param statement undefined: nothing follows demand over several sites any more */
export function writeStatement({ keeper_folder }: StateLayout, statement: KeeperStatement | undefined): void {
  const path = join(keeper_folder, keeperFiles.scaling);
  if (statement === undefined) {
    rmSync(path, { force: true });
    return;
  }
  makeFolders(keeper_folder);
  writeFileAtomically(path, `${JSON.stringify(statement)}\n`);
}
