/** The platform an archive is made for: its Node, and every native addon for it. */
import { cpSync, mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { installAddons, versionOf } from './addons.ts';
import type { TargetArchitecture } from './architectures.ts';
import { packagedNode, unpackPackage } from './node.ts';

export function installTarget(arch: TargetArchitecture, folder: string): void {
  const node = packagedNode(arch);
  mkdirSync(join(folder, 'bin'), { recursive: true });
  cpSync(join(node, 'bin/node'), join(folder, 'bin/node'));
  cpSync(join(node, 'LICENSE'), join(folder, 'bin/node.LICENSE'));
  // npm installs the binaries of its own machine's architecture alone.
  const koffi = `@koromix/koffi-linux-${arch}`;
  if (arch !== process.arch) unpackPackage(koffi, versionOf('koffi'), join(folder, 'node_modules', koffi));
  installAddons(arch, folder);
}
