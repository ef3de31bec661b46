import { beforeAll, describe, expect, it } from 'vitest';
import { countByFile, differences, readExceptions } from '../../.ci/style/exceptions.ts';
import { styleRules } from '../../.ci/style/index.ts';
import type { ParsedFile } from '../../.ci/style/rule.ts';
import { parsed, sourceFiles } from '../../.ci/style/source-files.ts';

const script = 'node dist/.ci/write-style-exceptions.js';

/** What each rule finds in a file: the names or beginnings of the text. */
const examples: Record<string, { path?: string; text: string; finds: string[] }> = {
  'private-members': {
    text: 'class A { private a = 1; #b = 2; private constructor() {} private static c() {} }',
    finds: ['a', 'c'],
  },
  bounds: {
    text: `const maxSize = 1; const size_max = 1; const MAX_SIZE = 1; let sizeMax: number;
      interface B { max_size: number; max_tokens: number; min_p: number }
      function minBy() { return Math.max(1, size_max); }`,
    finds: ['maxSize', 'MAX_SIZE', 'sizeMax', 'max_size'],
  },
  units: {
    text: `const timeoutMs = f(); const timeout_ms = 1; const wait_secs = 2; const drain_ms_soft = 3; const drain_ms_max = 4;
      const bodyBytes = 5 * 6; const bodyBytes2: Uint8Array = f(); const stopTokens: number[] = [];
      const byte_per_s_of_link = 7; function parseSeconds(text: string): number { return Number(text); }
      function loadSeconds(): number { return 1; }`,
    finds: ['timeoutMs', 'wait_secs', 'drain_ms_soft', 'bodyBytes', 'loadSeconds'],
  },
  'conditional-spread': {
    text: 'f({ ...(a ? { a } : {}), ...(b && { b }), ...c, ...(d ? { d } : { e }) }, [...(a ? [a] : [])]);',
    finds: ['...(a ? { a } : {})', '...(b && { b })'],
  },
  'function-length': {
    text: `function a() {${'\n'.repeat(69)}}\nconst b = () => {${'\n'.repeat(70)}};`,
    finds: ['b: 71 lines'],
  },
  'comment-width': {
    text: `// ${'a'.repeat(117)}\n// ${'a'.repeat(118)}\nconst text = \`\n// ${'a'.repeat(200)}\n\`; // ${'a'.repeat(117)}`,
    finds: ['121 columns', '123 columns'],
  },
  'class-comment': {
    text: '/** The file. */\nimport a from "a";\nexport class A {}\n/** B. */\nexport class B {}\nclass C {}',
    finds: ['A'],
  },
  'file-json': {
    text: `const a = JSON.parse(t) as A; const b: unknown = JSON.parse(t); const c = schema.parse(JSON.parse(t));
      function d(): A { return JSON.parse(t); } const e = JSON.parse(t) as unknown; const f: A = JSON.parse(t);
      f((): unknown => JSON.parse(t)); JSON.parse(t).version;`,
    finds: ['JSON.parse(t) as A', 'return JSON.parse(t);', 'f: A = JSON.parse(t)', 'JSON.parse(t).version'],
  },
  'device-kind': {
    path: 'agent/streaming/example.ts',
    text: `if (name.startsWith('CUDA') || /^Vulkan\\d+$/.test(name) || kind === "hip") f('CUDA_VISIBLE_DEVICES', 'CUDA has none');`,
    finds: ["'CUDA'", '/^Vulkan\\d+$/', '"hip"'],
  },
};

describe.each(Object.entries(examples))('the rule %s', (name, { path = 'spec/example.ts', text, finds }) => {
  it('finds what breaks it, and nothing else', () => {
    const rule = styleRules.find((each) => each.name === name)!;
    expect(rule.find([parsed(path, text)]).map(({ what }) => what)).toEqual(finds);
  });
});

it('the rule same-name finds a name that two rooms export', () => {
  const rule = styleRules.find(({ name }) => name === 'same-name')!;
  const found = rule.find([
    parsed('mesh/a.ts', 'export interface Queue {}\nexport class Own {}'),
    parsed('agent/b.ts', 'export class Queue {}\nclass Own {}'),
    parsed('agent/c.ts', 'export type Twice = 1;'),
    parsed('agent/d.ts', 'export type Twice = 1;\nexport const Queue = 1;'),
  ]);
  expect(found.map(({ path, what }) => `${path} ${what}`)).toEqual(['mesh/a.ts Queue', 'agent/b.ts Queue']);
});

it('a file is to have the number of findings that is listed for it', () => {
  const found = countByFile(['b.ts', 'c.ts', 'b.ts', 'd.ts'].map((path) => ({ path, line: 1, what: '' })));
  expect(differences({ 'a.ts': 1, 'b.ts': 2, 'c.ts': 2 }, found)).toEqual([
    { path: 'a.ts', listed: 1, found: 0 },
    { path: 'c.ts', listed: 2, found: 1 },
    { path: 'd.ts', listed: 0, found: 1 },
  ]);
});

describe('the tree', () => {
  let files: ParsedFile[];
  beforeAll(() => {
    files = sourceFiles();
    expect(files.length).toBeGreaterThan(500);
  });

  it('has an example above for every rule', () => {
    const names = styleRules.map(({ name }) => name);
    expect([...Object.keys(examples), 'same-name'].sort()).toEqual(names.sort());
    expect(Object.keys(readExceptions()).sort()).toEqual(names.sort());
  });

  it.each([...styleRules])('keeps to the rule $name, but for what is listed', ({ name, instead, find }) => {
    const findings = find(files);
    const changed = differences(readExceptions()[name] ?? {}, countByFile(findings));
    const worse = changed
      .filter(({ found, listed }) => found > listed)
      .map(({ path, found, listed }) => {
        const where = findings
          .filter((each) => each.path === path)
          .map(({ line, what }) => `${line} ${what}`);
        return `${path} has ${found} of ${name}, ${listed} listed; ${instead}: ${where.join(' · ')}`;
      });
    expect(worse).toEqual([]);
    const better = changed
      .filter(({ found, listed }) => found < listed)
      .map(({ path, found, listed }) => `${path} has ${found} of ${name}, ${listed} listed; run ${script}`);
    expect(better).toEqual([]);
  });
});
