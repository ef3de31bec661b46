/**
 * What the soak's broken, huge and malicious clients send: one function a kind, each one act of a few milliseconds to
 * seconds.
 */
import { randomBytes } from 'node:crypto';
import { request as httpRequest } from 'node:http';
import { connect } from 'node:net';

export interface Target {
  /** HTTP ports of the gateways. */
  gateways: readonly { host: string; port: number }[];
  /** Every other port that gateways, agents and workers listen on. */
  others: readonly { host: string; port: number }[];
  model: string;
  /** Absent for strangers. */
  key?: string;
}

/** @returns a word for what came of it; it never rejects because the other side refused */
export type Act = (target: Target, turn: number) => Promise<string>;

const chatPath = '/v1/chat/completions';
/** Patience with one answer, ms: a held connection is given up then. */
const answer_ms = 60_000;
const hold_ms = 20_000;

/** Connections without a key: noise for every port, headers that never end, and ones that only stay. */
export const strangerActs: readonly Act[] = [
  ({ others }, turn) => raw(pick(others, turn), [randomBytes(24), randomBytes(40)], 50),
  ({ others }, turn) =>
    raw(pick(others, turn), [Buffer.from('160301020001000', 'hex'), randomBytes(600)], 50),
  ({ gateways }, turn) => raw(pick(gateways, turn), [randomBytes(2000)], 200),
  ({ gateways }, turn) => raw(pick(gateways, turn), ['GET /health HTTP/1.1\r\nhost: x\r\n'], hold_ms),
  ({ gateways }, turn) => raw(pick(gateways, turn), ['GET /health HTTP/1.1\r\nhost: x\r\n\r\n'], hold_ms),
  ({ gateways }, turn) => raw(pick(gateways, turn), [], hold_ms),
  (target, turn) => post({ ...target, key: 'hsk-notakey' }, turn, '{"model":"toy","messages":[]}'),
];

/** With a key: what buggy programs send. */
export const brokenActs: readonly Act[] = [
  (target, turn) => post(target, turn, '{"model": "toy", "messages": [}'),
  (target, turn) => post(target, turn, JSON.stringify({ model: target.model, messages: 'none' })),
  (target, turn) => post(target, turn, randomBytes(3000)),
  (target, turn) => post(target, turn, `${'['.repeat(50_000)}${']'.repeat(50_000)}`),
  (target, turn) => post(target, turn, chat(target, { max_tokens: -3 })),
  (target, turn) =>
    post(target, turn, chat(target, { stream: true, max_tokens: 200 }), { leave_after_ms: 150 }),
  (target, turn) => post(target, turn, chat(target, { max_tokens: 60 }), { leave_after_ms: 30 }),
  (target, turn) => post(target, turn, chat(target, {}), { declared_bytes: 5000, leave_after_ms: 2000 }),
  (target, turn) => post(target, turn, chat(target, {}), { path: '/v1/nothing' }),
  (target, turn) => post(target, turn, chat(target, {}), { headers: { 'x-padding': 'x'.repeat(70_000) } }),
];

/** With a key: requests of the largest size that a gateway takes. */
export const hugeActs: readonly Act[] = [
  (target, turn) => post(target, turn, manyObjects(target)),
  (target, turn) =>
    post(target, turn, chat(target, { messages: [{ role: 'user', content: 'word '.repeat(800_000) }] })),
  (target, turn) => post(target, turn, chat(target, { user: 'x'.repeat(20_000_000) })),
];

/** With a key: requests that were made to stop a worker or a gateway, or to cheat. */
export const maliciousActs: readonly Act[] = [
  (target, turn) => post(target, turn, chat(target, { response_format: doublingSchema(40), max_tokens: 4 })),
  (target, turn) => post(target, turn, chat(target, { ['p'.repeat(1_000_000)]: 1 })),
  (target, turn) => post(target, turn, chat(target, { grammar: manyRules(4000), max_tokens: 4 })),
  (target, turn) =>
    post(target, turn, chat(target, { response_format: schemaOf({ ['k'.repeat(250_000)]: 1 }) })),
  (target, turn) =>
    post(target, turn, chat({ ...target, model: `evil\u001b]0;pwned\u0007\u001b[2J\r\nROOT ${turn}` }, {})),
  (target, turn) => post(target, turn, chat({ ...target, model: 'm'.repeat(2_000_000) }, {})),
  (target, turn) =>
    post(
      target,
      turn,
      `{"model":"toy","stream":true,"messages":[],"stream_options":${'{"a":'.repeat(100_000)}1${'}'.repeat(100_000)}}`,
    ),
  (target, turn) =>
    post(
      target,
      turn,
      chat(target, {
        messages: [
          { role: 'user', content: [{ type: 'image_url', image_url: { url: 'http://127.0.0.1:1/x' } }] },
        ],
      }),
    ),
  async (target, turn) => {
    const all = Array.from({ length: 30 }, () => post(target, turn, chat(target, { max_tokens: 400 })));
    return (await Promise.all(all))[0]!;
  },
];

function chat({ model }: Target, more: Record<string, unknown>): string {
  return JSON.stringify({ model, messages: [{ role: 'user', content: 'Go on.' }], max_tokens: 8, ...more });
}

function manyObjects({ model }: Target): string {
  return `{"model":${JSON.stringify(model)},"messages":[],"x":[${'{},'.repeat(10_000_000)}{}]}`;
}

function schemaOf(schema: Record<string, unknown>): Record<string, unknown> {
  return { type: 'json_schema', json_schema: { name: 'x', schema } };
}

/** Each definition names the next twice, with a constraint beside the reference. */
function doublingSchema(depth: number): Record<string, unknown> {
  const $defs: Record<string, unknown> = { [`a${depth}`]: { type: 'object' } };
  for (let at = 0; at < depth; at++) {
    const next = { $ref: `#/$defs/a${at + 1}`, type: 'object' };
    $defs[`a${at}`] = { type: 'object', properties: { p: next, q: next } };
  }
  return schemaOf({ $ref: '#/$defs/a0', $defs });
}

function manyRules(count: number): string {
  const rules = Array.from({ length: count }, (_, at) => `r${at} ::= "a" r${(at + 1) % count}`);
  return ['root ::= r0', ...rules].join('\n');
}

function pick<T>(all: readonly T[], turn: number): T {
  return all[turn % all.length]!;
}

/** Sends bytes as they are, and ends the connection after a while. */
function raw(
  { host, port }: { host: string; port: number },
  pieces: readonly (Buffer | string)[],
  stay_ms: number,
): Promise<string> {
  return new Promise((resolve) => {
    const socket = connect(port, host);
    const end = (word: string) => {
      clearTimeout(timer);
      socket.destroy();
      resolve(word);
    };
    const timer = setTimeout(() => end('held to its end'), stay_ms);
    socket.on('connect', () => {
      for (const piece of pieces) socket.write(piece);
    });
    socket.on('error', () => end('refused'));
    socket.on('close', () => end('closed'));
    socket.resume();
  });
}

function post(
  { gateways, key }: Target,
  turn: number,
  body: string | Buffer,
  more: {
    path?: string;
    headers?: Record<string, string>;
    leave_after_ms?: number;
    declared_bytes?: number;
  } = {},
): Promise<string> {
  const { host, port } = pick(gateways, turn);
  return new Promise((resolve) => {
    const request = httpRequest({
      host,
      port,
      method: 'POST',
      path: more.path ?? chatPath,
      headers: {
        authorization: `Bearer ${key}`,
        'content-type': 'application/json',
        'content-length': more.declared_bytes ?? Buffer.byteLength(body),
        ...more.headers,
      },
      agent: false,
    });
    const end = (word: string) => {
      clearTimeout(timer);
      request.destroy();
      resolve(word);
    };
    const timer = setTimeout(() => end('left'), more.leave_after_ms ?? answer_ms);
    request.on('error', () => end('broken off'));
    request.on('response', (response) => {
      response.on('end', () => end(String(response.statusCode)));
      response.on('error', () => end('broken off'));
      response.on('aborted', () => end('broken off'));
      response.resume();
    });
    if (more.declared_bytes === undefined) request.end(body);
    else request.write(body);
  });
}
