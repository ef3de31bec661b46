import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';

/**
 * The newest glibc symbol version that the ELF files below a folder ask for: over all files, and without
 * the compute libraries (which login-node commands never load).
 */
export function glibcNeeded(folder: string): { all: string; without_engine: string } {
  let all = 0;
  let withoutEngine = 0;
  for (const entry of readdirSync(folder, { recursive: true, withFileTypes: true })) {
    const path = join(entry.parentPath, entry.name);
    if (!entry.isFile() || !/(\.so|\.node|\/bin\/node)$/.test(path)) continue;
    const bytes = readFileSync(path);
    if (bytes.readUInt32BE(0) !== 0x7f454c46) continue; // not ELF: a linker script
    const versions = [...bytes.toString('latin1').matchAll(/\bGLIBC_2\.(\d+)/g)].map((match) =>
      Number(match[1]),
    );
    const newest = Math.max(0, ...versions);
    all = Math.max(all, newest);
    if (!path.includes('@node-llama-cpp')) withoutEngine = Math.max(withoutEngine, newest);
  }
  return { all: `2.${all}`, without_engine: `2.${withoutEngine}` };
}
