/** A site may have several gateways. Each has a folder of its own, which nobody else writes to. */
import { readdirSync } from 'node:fs';
import { join } from 'node:path';

const folderName = /^gateway(?:-([1-9]\d{0,3}))?$/;

/**
 * The folder of a gateway of the site whose state is below `root` (`StateLayout.root`).
 *
 * @param number from 1; the first one is in the folder that there was when a site had one
 */
export function gatewayFolderOf(root: string, number: number): string {
  return join(root, number === 1 ? 'gateway' : `gateway-${number}`);
}

/** The folders of all gateways that have ever run, the first gateway's first; none where the site has no state. */
export function listGatewayFolders(root: string): { number: number; folder: string }[] {
  let names: string[];
  try {
    names = readdirSync(root);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return [];
    throw error;
  }
  return names
    .flatMap((name) => {
      const match = folderName.exec(name);
      return match ? [{ number: Number(match[1] ?? 1), folder: join(root, name) }] : [];
    })
    .sort((a, b) => a.number - b.number);
}
