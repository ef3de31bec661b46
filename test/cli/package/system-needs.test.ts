/** What binaries ask of a system, against `objdump`, and what an archive may not ask. */
import { execFileSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { symbolVersionsNeeded } from '../../../cli/package/elf.ts';
import { systemNeeds } from '../../../cli/package/system-needs.ts';
import { packageRoot } from '../../../host/package-root.ts';
import { HpcserveError } from '../../../spec/errors/error.ts';

const koffi = join(
  packageRoot,
  `node_modules/@koromix/koffi-linux-${process.arch}/linux_${process.arch}/koffi.node`,
);

describe('the versions of symbols that a binary asks for', () => {
  it.each([koffi, process.execPath])('are those that objdump reads from %s', (path) => {
    const words = execFileSync('objdump', ['-p', path], { encoding: 'utf8', maxBuffer: 1 << 26 });
    const references = words.slice(words.indexOf('Version References:'));
    const wanted = [...references.matchAll(/0x[0-9a-f]{8} 0x[0-9a-f]{2} \d+ (\S+)/g)].map(([, name]) => name);
    expect(wanted.length).toBeGreaterThan(5);
    expect(symbolVersionsNeeded(readFileSync(path))).toEqual(wanted);
  });

  it('are none in what is no binary', () => {
    expect(symbolVersionsNeeded(Buffer.from('#!/bin/sh\n'))).toBeUndefined();
    expect(symbolVersionsNeeded(Buffer.alloc(0))).toBeUndefined();
  });
});

describe('an archive', () => {
  let folder: string;
  beforeEach(() => {
    folder = mkdtempSync(join(tmpdir(), 'hpcserve-needs-'));
  });
  afterEach(() => rmSync(folder, { recursive: true, force: true }));

  /** koffi's binary, which asks for little; with `newest` in the place of one of its versions. */
  function put(path: string, newest?: string): void {
    const bytes = readFileSync(koffi);
    const old = symbolVersionsNeeded(bytes)!.find((name) => /^GLIBC_2\.\d\d$/.test(name))!;
    if (newest !== undefined) bytes.write(newest, bytes.indexOf(`${old}\0`, 0, 'latin1'), 'latin1');
    mkdirSync(dirname(join(folder, path)), { recursive: true });
    writeFileSync(join(folder, path), bytes);
  }
  const computeLibrary = 'node_modules/@node-llama-cpp/linux-x64/bins/linux-x64/libggml.so';

  it('tells what all of it needs, and what login nodes need', () => {
    put('bin/node');
    put(computeLibrary, 'GLIBC_2.34');
    writeFileSync(join(folder, 'README.md'), 'GLIBC_2.99');
    const { glibc, libstdcxx } = systemNeeds(folder);
    expect(glibc.all).toBe('2.34');
    expect(glibc.without_engine).toMatch(/^2\.(17|25)$/);
    expect(libstdcxx.all).toBe(libstdcxx.without_engine);
  });

  it('may ask for what RHEL 8 has', () => {
    put('bin/node', 'GLIBC_2.28');
    expect(systemNeeds(folder).glibc.without_engine).toBe('2.28');
  });

  it('is refused where anything but a compute library asks for more', () => {
    put('node_modules/addon/addon.node', 'GLIBC_2.29');
    put(computeLibrary, 'GLIBC_2.34');
    let refused: unknown;
    try {
      systemNeeds(folder);
    } catch (error) {
      refused = error;
    }
    expect(refused).toBeInstanceOf(HpcserveError);
    expect((refused as HpcserveError).toText()).toMatch(
      /E_PACKAGE[\s\S]*because: node_modules\/addon\/addon\.node asks for GLIBC_2\.29/,
    );
    expect((refused as HpcserveError).because).toHaveLength(1);
  });
});
