/** The native libraries: found, tried in a child, bound; and broken ones as messages. */
import {
  chmodSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { basename, join } from 'node:path';
import { Worker } from 'node:worker_threads';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { GgmlType, loadGgml } from '../../native/ggml.ts';
import { Grammar } from '../../native/grammar.ts';
import { findNativeLibraries } from '../../native/libraries.ts';
import { loadLlama } from '../../native/llama.ts';
import { probeNativeLibraries } from '../../native/probe.ts';
import { Vocabulary } from '../../native/vocabulary.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import { model } from '../agent/engine/support.ts';

const folder = mkdtempSync(join(tmpdir(), 'hpcserve-native-'));
beforeAll(() => {
  process.env.XDG_CACHE_HOME = join(folder, 'cache');
});
afterAll(() => {
  delete process.env.XDG_CACHE_HOME;
  rmSync(folder, { recursive: true });
});

function failure(action: () => unknown): HpcserveError {
  try {
    action();
  } catch (error) {
    if (error instanceof HpcserveError) return error;
    throw error;
  }
  throw new Error('nothing was thrown');
}

/** A folder with the real libraries, one of them replaced. */
function brokenFolder(name: string, file: string, content: string | Uint8Array): string {
  const broken = mkdtempSync(join(folder, `${name}-`));
  const real = findNativeLibraries().folder;
  for (const library of readdirSync(real)) symlinkSync(join(real, library), join(broken, library));
  rmSync(join(broken, file));
  writeFileSync(join(broken, file), content);
  return broken;
}

describe('probe', () => {
  test('the packaged libraries compute, and the second probe trusts the first', () => {
    const first = probeNativeLibraries();
    expect(first).toMatchObject({ ggml_version: expect.stringMatching(/^0\.25\./), ran: true });
    expect(probeNativeLibraries()).toMatchObject({ folder: first.folder, ran: false });
  });

  test('a folder without libraries', () => {
    const empty = mkdtempSync(join(folder, 'empty-'));
    expect(failure(() => probeNativeLibraries(empty)).code).toBe('E_NATIVE_LIBRARY');
    expect(failure(() => probeNativeLibraries(join(empty, 'none'))).toText()).toContain('missing or empty');
  });

  test('a file that is no library', () => {
    const { llama } = findNativeLibraries();
    const error = failure(() => probeNativeLibraries(brokenFolder('text', basename(llama), 'no ELF file')));
    expect(error.code).toBe('E_NATIVE_LIBRARY');
    expect(error.because.join(' ')).toMatch(/invalid ELF header|file too short/);
  });

  test('a library that asks for symbol versions which this system lacks', () => {
    const { ggml_base } = findNativeLibraries();
    // The version names stand in the file as text; a name of the same length that no system has.
    const bytes = readFileSync(ggml_base);
    const version = /GLIBC_2\.\d\d/.exec(bytes.toString('latin1'))![0];
    const at = bytes.indexOf(version, 0, 'latin1');
    bytes.write('GLIBC_9.99', at, 'latin1');
    // The loader compares hashes of the names, so the hash in the file changes with it.
    const patched = patchVersionHash(bytes, version, 'GLIBC_9.99');
    const error = failure(() => probeNativeLibraries(brokenFolder('glibc', basename(ggml_base), patched)));
    expect(error.because.join(' ')).toContain('this system lacks GLIBC_9.99');
  });

  test('a library that ends the process', () => {
    const program = join(folder, 'node');
    writeFileSync(program, '#!/bin/sh\nkill -ILL $$\n');
    chmodSync(program, 0o755);
    const real = process.execPath;
    process.execPath = program;
    try {
      const empty = brokenFolder('signal', basename(findNativeLibraries().llama), 'x');
      expect(failure(() => probeNativeLibraries(empty)).because.join(' ')).toContain('SIGILL');
    } finally {
      process.execPath = real;
    }
  });
});

describe('bindings', () => {
  test('sizes of types, and CPU features', () => {
    const ggml = loadGgml();
    expect(Number(ggml.ggml_row_size(GgmlType.Q4_0, 64))).toBe(36);
    expect(Number(ggml.ggml_row_size(GgmlType.BF16, 64))).toBe(128);
    expect(ggml.cpuFeatures.length).toBeGreaterThan(0);
    expect(loadLlama().version).toMatch(/^0\.5\./);
  });
});

describe('vocabulary and grammar', () => {
  test('text to tokens and back', async () => {
    const vocabulary = Vocabulary.open(await model('tiny-llama', 'F16'));
    const tokens = vocabulary.tokenize('Grüße, 世界! The cat sat.', { add_special: false });
    expect(tokens.length).toBeGreaterThan(3);
    expect(vocabulary.detokenize(tokens)).toBe('Grüße, 世界! The cat sat.');
    expect(vocabulary.endTokens.size).toBeGreaterThan(0);
    for (const token of vocabulary.endTokens) expect(vocabulary.isEndOfGeneration(token)).toBe(true);
    vocabulary.close();
  });

  test('another thread uses the same vocabulary by its address', async () => {
    const vocabulary = Vocabulary.open(await model('tiny-llama', 'F16'));
    const expected = vocabulary.tokenize('the same everywhere');
    const same = Vocabulary.fromAddress(vocabulary.address);
    expect(same.tokenize('the same everywhere')).toEqual(expected);
    // A worker of plain JavaScript calls the library by the address that it is given.
    const { llama, ggml, ggml_base } = findNativeLibraries();
    const program = `
      const { parentPort, workerData } = require('node:worker_threads');
      const koffi = require(workerData.koffi);
      for (const path of workerData.libraries) var library = koffi.load(path, { global: true });
      const tokenize = library.func('llama_tokenize', 'int',
        ['void *', 'void *', 'int', 'void *', 'int', 'bool', 'bool']);
      const text = Buffer.from('the same everywhere'), tokens = new Int32Array(64);
      const count = tokenize(workerData.address, text, text.length, tokens, 64, true, false);
      parentPort.postMessage(tokens.slice(0, count));`;
    const worker = new Worker(program, {
      eval: true,
      workerData: {
        koffi: createRequire(import.meta.url).resolve('koffi'),
        libraries: [ggml_base, ggml, llama],
        address: vocabulary.address,
      },
    });
    const answer = await new Promise((resolve, reject) => {
      worker.once('message', resolve);
      worker.once('error', reject);
    });
    await worker.terminate();
    expect(answer).toEqual(expected);
    vocabulary.close();
  });

  test('a file without a tokenizer', () => {
    const path = join(folder, 'text.gguf');
    writeFileSync(path, 'no model');
    expect(failure(() => Vocabulary.open(path)).code).toBe('E_NATIVE_TOKENIZER');
  });

  test('a grammar allows, refuses, is copied and ends', async () => {
    const vocabulary = Vocabulary.open(await model('tiny-llama', 'F16'));
    const one = (text: string): number => {
      const tokens = vocabulary.tokenize(text, { add_special: false });
      expect(tokens).toHaveLength(1);
      return tokens[0]!;
    };
    const grammar = Grammar.parse(vocabulary, 'root ::= "a" ("b" | "c")');
    const [a, b, x] = [one('a'), one('b'), one('x')];
    expect(grammar.allows(a)).toBe(true);
    expect(grammar.allows(x)).toBe(false);
    expect(failure(() => grammar.accept(x)).code).toBe('E_NATIVE_GRAMMAR');
    grammar.accept(a);
    const copy = grammar.clone();
    const logits = new Float32Array(vocabulary.n_tokens).fill(1);
    copy.apply(logits);
    const allowed = [...logits.keys()].filter((token) => logits[token] !== Number.NEGATIVE_INFINITY);
    expect(allowed.map((token) => vocabulary.detokenize([token])).sort()).toEqual(['b', 'c']);
    copy.accept(b);
    const [end] = vocabulary.endTokens;
    expect(copy.allows(end!)).toBe(true);
    expect(grammar.allows(end!)).toBe(false);
    grammar.reset();
    expect(grammar.allows(a)).toBe(true);
    for (const one of [grammar, copy]) one.close();
    expect(failure(() => grammar.allows(a)).code).toBe('E_NATIVE_GRAMMAR');
    expect(failure(() => Grammar.parse(vocabulary, 'root ::= (')).code).toBe('E_NATIVE_GRAMMAR');
    vocabulary.close();
  });
});

/** ELF symbol version hash (System V gABI). */
function elfHash(name: string): number {
  let hash = 0;
  for (const character of name) {
    hash = ((hash << 4) + character.charCodeAt(0)) >>> 0;
    const high = hash & 0xf0000000;
    hash = (hash ^ (high >>> 24)) & ~high;
  }
  return hash >>> 0;
}

function patchVersionHash(bytes: Buffer, from: string, to: string): Buffer {
  const before = Buffer.alloc(4);
  before.writeUInt32LE(elfHash(from));
  const patched = Buffer.from(bytes);
  const at = patched.indexOf(before);
  expect(at).toBeGreaterThan(0);
  patched.writeUInt32LE(elfHash(to), at);
  return patched;
}
