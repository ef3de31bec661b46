/** `hpcserve native …`: which libraries the native engine computes with, and where backends for GPUs come from. */
import { resolve } from 'node:path';
import { Argument, type Command } from 'commander';
import { gpuLibraries } from '../../control/plan/native-devices.ts';
import { addedLibraries } from '../../control/state/native-libraries.ts';
import { findNativeLibraries } from '../../native/libraries.ts';
import { gpuBackendsIn, type ListedDevice, listAccelerators } from '../../native/list-devices.ts';
import { expandSitePath } from '../../spec/site-paths.ts';
import type { CliContext } from '../context.ts';
import { formatBytes } from '../format/quantities.ts';
import { printable } from '../format/style.ts';
import {
  type AddedBackendName,
  addBackend,
  addedBackendNames,
  addedBackends,
  packageOf,
} from '../native/add-backend.ts';
import { openSite } from '../site-session.ts';

export function registerNative(command: Command, context: CliContext): void {
  const native = command.addHelpText(
    'after',
    `
Examples:
  $ hpcserve native list
  $ hpcserve native add cuda`,
  );
  registerList(native, context);
  registerAdd(native, context);
}

function registerList(native: Command, context: CliContext): void {
  native
    .command('list')
    .description('Show the libraries of a site and, where jobs run on this machine, the devices they find')
    .addHelpText(
      'after',
      `
Examples:
  $ hpcserve native list
  $ hpcserve native list --site perlmutter --json`,
    )
    .action(() => {
      const { site } = openSite(context);
      const own = site.native.library_dir;
      const { folder, source } = findNativeLibraries(own && expandSitePath(own, context.environment));
      const backends = gpuBackendsIn(folder);
      const isHere = site.kind === 'local' && gpuLibraries(site, context.environment) !== undefined;
      const devices = isHere ? listAccelerators(folder, { ...context.environment }) : undefined;
      if (context.json)
        return context.out(JSON.stringify({ kind: 'native_libraries', folder, source, backends, devices }));
      context.out(`libraries  ${folder}`);
      context.out(`backends   ${['cpu', ...backends].join(', ')}`);
      for (const device of devices ?? []) context.out(`device     ${describeDevice(device)}`);
      if (site.kind === 'slurm' && backends.length > 0)
        context.note('devices are looked for on compute nodes');
    });
}

function registerAdd(native: Command, context: CliContext): void {
  native
    .command('add')
    .addArgument(new Argument('<backend>', 'what GPUs are computed on with').choices(addedBackendNames))
    .description('Put libraries with a backend for GPUs where all nodes of the site find them')
    .option('--from <file>', 'the package’s file, for a machine that reaches no registry (see below)')
    .addHelpText(
      'after',
      `
One package of the npm registry is fetched, held against its SHA-512, and unpacked beside the site's state; whatever
is deployed then uses it, unless the site config names a folder of its own (native.library_dir). Where no registry is
reached, fetch the file elsewhere and bring it:
  $ npm pack ${packageOf('cuda')}
  $ hpcserve native add cuda --from node-llama-cpp-linux-x64-cuda-*.tgz

Examples:
  $ hpcserve native add cuda
  $ hpcserve native add vulkan --site local`,
    )
    .action(async (backend: AddedBackendName, flags: { from?: string }) => {
      const { site, layout, path } = openSite(context);
      const libraries = addedLibraries(layout);
      const from = flags.from === undefined ? undefined : resolve(context.working_folder, flags.from);
      if (from === undefined) context.note(`fetching ${packageOf(backend)}`);
      const options = { libraries, architecture: process.arch };
      const folder = await addBackend(backend, from === undefined ? options : { ...options, from });
      const chosen = site.native.library_dir;
      if (context.json)
        context.out(
          JSON.stringify({ kind: 'native_added', backend, folder, needs: addedBackends[backend].needs }),
        );
      else {
        context.note(`nodes need ${addedBackends[backend].needs}`);
        context.out(folder);
      }
      if (chosen !== undefined && !chosen.startsWith(libraries.folder))
        context.note(
          `native.library_dir in ${path} names ${chosen}: remove it, or nothing uses what was added`,
        );
    });
}

function describeDevice({ name, description, memory_total_bytes, memory_free_bytes }: ListedDevice): string {
  const memory = `${formatBytes(memory_free_bytes)} of ${formatBytes(memory_total_bytes)} free`;
  return `${name}: ${printable(description)}, ${memory}`;
}
