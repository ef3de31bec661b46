/**
 * Reads a YAML file against a zod schema. Every error says file:line:column, what was read, what is
 * allowed, and the nearest known key; and every value can be asked where it came from.
 */
import { readFileSync } from 'node:fs';
import {
  type Document,
  isAlias,
  isMap,
  isNode,
  isScalar,
  isSeq,
  LineCounter,
  type Node,
  type Pair,
  parseDocument,
  type YAMLError,
  type YAMLMap,
} from 'yaml';
import { z } from 'zod';
import { HpcserveError } from './errors/error.ts';
import { nearest } from './nearest.ts';

/** A checked file: its value, and where each key stands. */
export interface YamlFile<T> {
  path: string;
  value: T;
  /**
   * `file:line:column` of a key path such as `slurm.account` or `models.0.source`; undefined where the file does not
   * set it.
   */
  provenance(keyPath: string): string | undefined;
}

/** Largest file that is read; a model.yaml of more is a mistake (a model file named instead). */
const yaml_bytes_max = 1024 * 1024;

/**
 * @throws HpcserveError E_CONFIG_MISSING where there is no such file, E_CONFIG_YAML where it is not well
 *   formed or does not fit the schema; all findings are listed, first ones first.
 */
export function readYamlFile<S extends z.ZodType>(path: string, schema: S): YamlFile<z.output<S>> {
  return parseYaml(readText(path), path, schema);
}

export function parseYaml<S extends z.ZodType>(text: string, path: string, schema: S): YamlFile<z.output<S>> {
  const lines = new LineCounter();
  const document = parseDocument(text, {
    lineCounter: lines,
    uniqueKeys: true,
    prettyErrors: false,
    merge: true,
  });
  const position = (offset: number | undefined): string => {
    const at = lines.linePos(offset ?? 0);
    return `${path}:${Math.max(1, at.line)}:${Math.max(1, at.col)}`;
  };
  if (document.errors.length > 0) {
    throw new HpcserveError('E_CONFIG_YAML', {
      what: `${path} is not well-formed YAML`,
      because: document.errors.slice(0, 5).map((error) => `${position(error.pos[0])}: ${wordsOf(error)}`),
      try: 'Correct the file at the position named; YAML indents with spaces, never with tabs.',
      details: { path },
    });
  }
  let data: unknown;
  try {
    data = document.toJS({ maxAliasCount: 100 });
  } catch (error) {
    // yaml throws a plain ReferenceError for aliases that expand without bound or point nowhere.
    throw new HpcserveError('E_CONFIG_YAML', {
      what: `${path} cannot be expanded`,
      because: error instanceof Error ? error.message : String(error),
      try: 'Write the values out instead of using YAML aliases.',
      cause: error,
    });
  }
  // A file is read once: compiling a parser for it takes longer than it saves.
  const result = schema.safeParse(data, { jitless: true });
  if (!result.success) {
    const findings = result.error.issues.flatMap((issue) => describeIssue(issue, document, schema, position));
    throw new HpcserveError('E_CONFIG_YAML', {
      what: `${path} has ${findings.length === 1 ? 'a wrong entry' : `${findings.length} wrong entries`}`,
      because: findings.slice(0, 20).map((finding) => finding.text),
      try: findings.map((finding) => finding.advice).find((advice) => advice !== undefined),
      details: { path, keys: findings.map((finding) => finding.key) },
    });
  }
  return {
    path,
    value: result.data,
    provenance: (keyPath) => {
      const keys = keyPath.split('.');
      const found = locate(document, keys);
      return found.depth === keys.length ? position(found.keyOffset) : undefined;
    },
  };
}

/** The parser's words, but for those that are for who writes programs with it. */
function wordsOf({ code, message }: YAMLError): string {
  return code === 'MULTIPLE_DOCS' ? 'a second document begins here, and a file holds one' : message;
}

interface Finding {
  key: string;
  text: string;
  advice?: string;
}

function describeIssue(
  issue: z.core.$ZodIssue,
  root: Document,
  schema: z.ZodType,
  position: (offset: number | undefined) => string,
): Finding[] {
  const path = issue.path.map(String);
  const key = path.join('.') || '(the whole file)';
  if (issue.code === 'unrecognized_keys') {
    const known = knownKeys(schema, path);
    return issue.keys.map((unknownKey) => {
      const at = position(locate(root, [...path, unknownKey]).keyOffset);
      const close = nearest(unknownKey, known);
      const whole = [...path, unknownKey].join('.');
      return {
        key: whole,
        text: `${at}: unknown key "${whole}"; ${close ? `did you mean "${close}"? ` : ''}known here: ${known.join(', ')}`,
        advice: close ? `Write "${close}" instead of "${unknownKey}".` : undefined,
      };
    });
  }
  if (issue.code === 'invalid_union') {
    const deepest = issue.errors.flat().sort((a, b) => b.path.length - a.path.length)[0];
    if (deepest && deepest.path.length > 0) {
      return describeIssue({ ...deepest, path: [...issue.path, ...deepest.path] }, root, schema, position);
    }
    const words = issue.errors.flat().map((error) => allowed(error));
    const place = locate(root, path);
    const text = asText(place, issue.errors.flat());
    return [
      {
        key,
        text: `${position(place.offset)}: ${key} ${wasRead(place)}; allowed: ${[...new Set(words)].join(', or ')}${inQuotes(text)}`,
        advice: text && `Put quotes around it: ${text}.`,
      },
    ];
  }
  const found = locate(root, path);
  if (issue.code === 'invalid_key') {
    const named = `the key ${JSON.stringify(path.at(-1))} of ${path.slice(0, -1).join('.')}`;
    const words = issue.issues.map((each) => allowed(each)).join(', ');
    return [{ key, text: `${position(found.keyOffset)}: ${named} cannot be; allowed: ${words}` }];
  }
  if (found.depth < path.length) {
    return [{ key, text: `${position(found.offset)}: "${key}" is missing; allowed: ${allowed(issue)}` }];
  }
  const close =
    issue.code === 'invalid_value' && typeof found.value === 'string'
      ? nearest(found.value, issue.values.map(String))
      : undefined;
  const text = asText(found, [issue]);
  return [
    {
      key,
      text: `${position(found.offset)}: ${key} ${wasRead(found)}; allowed: ${allowed(issue)}${close ? `; did you mean "${close}"?` : inQuotes(text)}`,
      advice: close ? `Write "${close}".` : text && `Put quotes around it: ${text}.`,
    },
  ];
}

/** What an issue says is allowed, in plain words. */
function allowed(issue: z.core.$ZodIssue): string {
  switch (issue.code) {
    case 'invalid_type':
      return typeWords[issue.expected] ?? issue.expected;
    case 'invalid_value':
      return issue.values.map((value) => JSON.stringify(value)).join(', ');
    case 'too_small':
      return `${sizeOf(issue.origin)} ${issue.inclusive ? 'at least' : 'more than'} ${issue.minimum}`.trim();
    case 'too_big':
      return `${sizeOf(issue.origin)} ${issue.inclusive ? 'at most' : 'less than'} ${issue.maximum}`.trim();
    default:
      return issue.message;
  }
}

const typeWords: Record<string, string> = {
  string: 'a text',
  number: 'a number',
  int: 'a whole number',
  boolean: 'true or false',
  array: 'a list',
  object: 'a mapping (key: value)',
  record: 'a mapping (key: value)',
};

function sizeOf(origin: string): string {
  if (origin === 'array') return 'a list with a number of entries of';
  if (origin === 'string') return 'a text with a number of characters of';
  return '';
}

/** What YAML takes for a number, or for true and false, as it is written where a text is wanted. */
function asText({ value, source }: Location, issues: readonly z.core.$ZodIssue[]): string | undefined {
  const isOther = typeof value === 'number' || typeof value === 'boolean';
  const isText = issues.some((issue) => issue.code === 'invalid_type' && issue.expected === 'string');
  return isOther && isText && source !== undefined ? JSON.stringify(source) : undefined;
}

const inQuotes = (text: string | undefined): string => (text ? `: ${text}, with the quotes` : '');

function wasRead({ value }: Location): string {
  // JSON has no word for infinity.
  const text = typeof value === 'number' ? String(value) : (JSON.stringify(value) ?? 'nothing');
  return `was read as ${text.length > 60 ? `${text.slice(0, 57)}…` : text}`;
}

interface Location {
  /** How many keys of the path the file has. */
  depth: number;
  /** Offset of the deepest value found. */
  offset: number | undefined;
  /** Offset of its key (of the value itself in a list). */
  keyOffset: number | undefined;
  value: unknown;
  /** The value as it is written, where it is one word. */
  source: string | undefined;
}

/** Where an alias stands, what it stands for: that is read, and is to be corrected. */
function locate(root: Document, path: readonly string[]): Location {
  const nodeOf = (value: unknown): Node | undefined => {
    const node = isAlias(value) ? value.resolve(root) : value;
    return isNode(node) ? node : undefined;
  };
  let node = nodeOf(root.contents);
  let offset = node?.range?.[0];
  let keyOffset = offset;
  let depth = 0;
  for (const key of path) {
    if (isMap(node)) {
      const pair = pairOf(node, key, nodeOf);
      if (!pair) break;
      keyOffset = isNode(pair.key) ? pair.key.range?.[0] : keyOffset;
      node = nodeOf(pair.value);
      offset = node?.range?.[0] ?? keyOffset;
    } else if (isSeq(node) && node.items[Number(key)] !== undefined) {
      node = nodeOf(node.items[Number(key)]);
      offset = node?.range?.[0] ?? offset;
      keyOffset = offset;
    } else break;
    depth++;
  }
  const source = isScalar(node) ? node.source : undefined;
  return { depth, offset, keyOffset, value: node?.toJS(root), source };
}

/** A mapping's own key, or the first of that name in what is merged into it (`<<`). */
function pairOf(
  map: YAMLMap,
  key: string,
  nodeOf: (value: unknown) => Node | undefined,
): Pair<unknown, unknown> | undefined {
  const nameOf = ({ key: name }: Pair): unknown => (isScalar(name) ? name.value : name);
  const own = map.items.find((item) => String(nameOf(item)) === key);
  if (own) return own;
  for (const item of map.items) {
    if (typeof nameOf(item) !== 'symbol') continue;
    const merged = nodeOf(item.value);
    for (const source of isSeq(merged) ? merged.items.map(nodeOf) : [merged]) {
      const pair = isMap(source) ? pairOf(source, key, nodeOf) : undefined;
      if (pair) return pair;
    }
  }
  return undefined;
}

/** Keys that the schema knows at a path; empty where anything is allowed. */
function knownKeys(schema: z.ZodType, path: readonly string[]): string[] {
  let current: unknown = schema;
  for (const key of ['', ...path]) {
    current = unwrap(current);
    if (key === '') continue;
    if (current instanceof z.ZodObject) current = (current.shape as Record<string, unknown>)[key];
    else if (current instanceof z.ZodArray) current = current.element;
    else if (current instanceof z.ZodRecord) current = current.valueType;
    else return [];
  }
  current = unwrap(current);
  return current instanceof z.ZodObject ? Object.keys(current.shape) : [];
}

function unwrap(schema: unknown): unknown {
  let current = schema;
  for (;;) {
    if (
      current instanceof z.ZodOptional ||
      current instanceof z.ZodDefault ||
      current instanceof z.ZodPrefault ||
      current instanceof z.ZodNullable
    ) {
      current = current.unwrap();
    } else if (current instanceof z.ZodPipe) current = current.in;
    else if (current instanceof z.ZodUnion) {
      current = current.options.find((option: unknown) => unwrap(option) instanceof z.ZodObject);
    } else return current;
  }
}

function readText(path: string): string {
  let bytes: Buffer;
  try {
    bytes = readFileSync(path);
  } catch (error) {
    const code = (error as NodeJS.ErrnoException).code;
    throw new HpcserveError('E_CONFIG_MISSING', {
      what: `${path} cannot be read`,
      because:
        code === 'ENOENT' ? 'there is no such file' : code === 'EISDIR' ? 'it is a folder' : String(error),
      try: 'Name a YAML file that exists and that you may read.',
      cause: error,
    });
  }
  if (bytes.length > yaml_bytes_max || bytes.includes(0)) {
    throw new HpcserveError('E_CONFIG_YAML', {
      what: `${path} is not a YAML file`,
      because:
        bytes.subarray(0, 4).toString('latin1') === 'GGUF'
          ? 'it is a GGUF model file'
          : `it holds ${bytes.length} bytes${bytes.includes(0) ? ', some of them zero' : ''}`,
      try: 'Write a model.yaml that names the model file under models[].source, and give that file.',
    });
  }
  return bytes.toString('utf8');
}
