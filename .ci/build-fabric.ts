/**
 * `node dist/.ci/build-fabric.js FOLDER [HEADERS]`: native/fabric into a folder, by the compiler that the environment
 * variable CC names, for an archive. HEADERS is the folder of libfabric's; without it there is no library for it.
 */
import { compileFabricLibrary, compileTransferLibrary } from './compile-fabric.ts';

const [target, headers] = process.argv.slice(2);
if (target === undefined) throw new Error('usage: build-fabric.js FOLDER [HEADERS]');
const compiler = process.env.CC || 'cc';
try {
  compileTransferLibrary(target, compiler);
  if (headers !== undefined) compileFabricLibrary(target, compiler, headers);
} catch (error) {
  process.stderr.write(`${(error as Error).message}\n`);
  process.exit(1);
}
