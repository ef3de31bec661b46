import { connect } from 'node:net';
import { describe, expect, it, test } from 'vitest';
import { GonePeers } from '../../../agent/device-worker/moving/gone-peers.ts';
import type { KvMessage } from '../../../agent/transfer/messages.ts';
import { fabricAbsence } from '../../../native/fabric/fabric.ts';
import { HpcserveError } from '../../../spec/errors/error.ts';
import { bytesOfTokens, format, type PairOptions, tokens_max, transferPair } from './support.ts';

const withFabric = it.skipIf(fabricAbsence() !== undefined);
const kinds: [string, PairOptions, string][] = [
  ['sendfile', { ways: ['sendfile'] }, 'sendfile'],
  ['tcp in the clear', { ways: ['tcp'] }, 'tcp, not encrypted'],
  ['tcp, encrypted', { private_fabric: false, same_node: false }, 'tcp, encrypted'],
  ['sendfile within a node whose network is not private', { private_fabric: false }, 'sendfile'],
];

async function codeOf(promise: Promise<unknown>): Promise<string> {
  const thrown: unknown = await promise.then(
    () => undefined,
    (error: unknown) => error,
  );
  return thrown instanceof HpcserveError ? thrown.code : String(thrown);
}

describe('keys and values reach the rows of another worker', () => {
  it.each(kinds)('by %s', async (_, options, way) => {
    await using pair = await transferPair(options);
    const sent = await pair.source.send(pair.peer, pair.outgoing('a', 1000));
    expect(sent).toMatchObject({ way, bytes: bytesOfTokens(1000) });
    expect(pair.same(1000)).toBe(true);
    expect(pair.receiver.committed).toHaveLength(1);
    // The way stays open, and is used again.
    await pair.source.send(pair.peer, pair.outgoing('b', 33));
    expect(pair.target.links).toEqual([{ peer: 'the-source', way }]);
    expect(pair.source.peers).toMatchObject([{ way, transfers: 2, failures: 0, fallbacks: [] }]);
    expect(pair.notices).toEqual([]);
  });

  withFabric.each(['tcp', 'shm'])('by RDMA calls over %s', async (provider) => {
    await using pair = await transferPair({ ways: ['rma'], providers: [provider] });
    const sent = await pair.source.send(pair.peer, pair.outgoing('a', 1000));
    expect(sent.way).toMatch(new RegExp(`^rma \\(${provider}`));
    expect(pair.same(1000)).toBe(true);
    await pair.source.send(pair.peer, pair.outgoing('b', 33));
    expect(pair.receiver.committed).toHaveLength(2);
  });

  it('in rounds, while the sequence decodes', async () => {
    await using pair = await transferPair({ ways: ['sendfile'] });
    for (const [begin, end] of [
      [0, 64],
      [64, 80],
      [80, 81],
    ] as const) {
      const tokens = { begin, end };
      await pair.source.send(pair.peer, pair.outgoing('a', end, { tokens, runs: [tokens] }));
    }
    expect(pair.same(81)).toBe(true);
    expect(pair.receiver.committed.map(({ tokens }) => tokens.end)).toEqual([64, 80, 81]);
  });

  const ofModel = (tokens: number) => ({ of: { model: 'm', token_ids: new Array<number>(tokens).fill(7) } });

  it('in parts, where the other worker takes no more at once', async () => {
    const transfer_bytes_max = bytesOfTokens(100);
    await using pair = await transferPair({ ways: ['sendfile'], target: { transfer_bytes_max } });
    const runs = [
      { begin: 0, end: 250 },
      { begin: 250, end: 333 },
    ];
    const sent = await pair.source.send(pair.peer, pair.outgoing('a', 333, { runs, ...ofModel(333) }));
    expect(sent.bytes).toBe(bytesOfTokens(333));
    expect(pair.same(333)).toBe(true);
    const came = pair.receiver.committed.map(({ runs: parts }) =>
      parts.map(({ begin, end }) => [begin, end]),
    );
    // Whole blocks, as far as that goes.
    expect(came).toEqual([
      [[0, 96]],
      [[96, 192]],
      [
        [192, 250],
        [250, 288],
      ],
      [[288, 333]],
    ]);
    expect(pair.receiver.committed.map(({ of }) => of!.token_ids.length)).toEqual([96, 192, 288, 333]);
  });

  it('not where a token is more than the other takes: it is said, and the way stays', async () => {
    const transfer_bytes_max = bytesOfTokens(1) - 1;
    await using pair = await transferPair({ ways: ['sendfile'], target: { transfer_bytes_max } });
    expect(await codeOf(pair.source.send(pair.peer, pair.outgoing('a', 3, ofModel(3))))).toBe('E_KV_ROOM');
    expect(pair.source.peers).toMatchObject([{ way: 'sendfile', fallbacks_total: 0 }]);
  });

  it('what is reserved for a peer that has gone meanwhile is given back', async () => {
    await using pair = await transferPair({ ways: ['sendfile'] });
    let free = (): void => undefined;
    pair.receiver.room_free = new Promise((resolve) => {
      free = resolve;
    });
    const sending = codeOf(pair.source.send(pair.peer, pair.outgoing('a', 10)));
    await expect.poll(() => pair.target.links.length).toBe(1);
    await pair.target.forget('the-source');
    free();
    await expect.poll(() => pair.receiver.aborted.length).toBeGreaterThan(0);
    await sending;
    expect(pair.receiver.committed.length + pair.receiver.aborted.length).toBeGreaterThan(0);
  });
});

describe('a fabric that is announced and does not work', () => {
  withFabric('is passed over, told on both sides, and counted', async () => {
    await using pair = await transferPair({ providers: ['cxi', 'tcp'], ways: ['rma', 'sendfile'] });
    const sent = await pair.source.send(pair.peer, pair.outgoing('a', 10));
    expect(sent.way).toMatch(/^rma \(tcp/);
    expect(pair.notices.map(({ code }) => code)).toEqual(['E_KV_FABRIC', 'E_KV_FABRIC']);
    expect(pair.notices[0]!.because.join()).toContain('fi_getinfo');
    expect(pair.source.peers[0]!.fallbacks).toMatchObject([{ way: 'rma (cxi)' }]);
  });

  withFabric('whose trial never arrives is not used', async () => {
    const other = 'f'.repeat(128);
    const tamper = (message: KvMessage): KvMessage =>
      message.kind === 'connected' && message.probe ? { ...message, probe: other } : message;
    await using pair = await transferPair({ ways: ['rma', 'sendfile'], tamper });
    expect((await pair.source.send(pair.peer, pair.outgoing('a', 10))).way).toBe('sendfile');
    expect(pair.notices.map(({ message }) => message).join()).toContain('rma (tcp');
  });
});

describe('what the target refuses', () => {
  it.each([
    ['another build', { build: 'other' }],
    ['another model', { model: 'sha256:1' }],
    ['another type', { kv_type: 'q8_0' as const }],
    ['rows of another length', { row_bytes: 1024 }],
  ])('rows of %s', async (_, change) => {
    await using pair = await transferPair({ ways: ['sendfile'] });
    pair.receiver.format = { ...format, ...change };
    expect(await codeOf(pair.source.send(pair.peer, pair.outgoing('a', 10)))).toBe('E_KV_FORMAT');
    pair.receiver.format = format;
    await pair.source.send(pair.peer, pair.outgoing('b', 10));
    expect(pair.receiver.committed).toHaveLength(1);
  });

  it('an older generation, and a message that is said twice', async () => {
    const said: KvMessage[] = [];
    const tamper = (message: KvMessage): KvMessage => {
      said.push(structuredClone(message));
      return message;
    };
    await using pair = await transferPair({ ways: ['sendfile'], tamper });
    await pair.source.send(pair.peer, pair.outgoing('a', 10, { generation: 2 }));
    expect(await codeOf(pair.source.send(pair.peer, pair.outgoing('a', 10)))).toBe('E_KV_STALE');
    for (const kind of ['begin', 'finish'] as const) {
      const message = said.find((each) => each.kind === kind)!;
      expect(await codeOf(pair.target.answer('the-source', message))).toBe('E_KV_STALE');
      // Nor may somebody else speak of it.
      expect(await codeOf(pair.target.answer('a-stranger', message))).toBe('E_KV_CLOSED');
    }
    expect(pair.receiver.committed).toHaveLength(1);
  });

  it('a second transfer on a way while rows are still taken for the first', async () => {
    const said: KvMessage[] = [];
    const tamper = (message: KvMessage): KvMessage => {
      said.push(structuredClone(message));
      return message;
    };
    await using pair = await transferPair({ ways: ['sendfile'], tamper });
    await pair.source.send(pair.peer, pair.outgoing('a', 10));
    const [begin] = said.filter((message) => message.kind === 'begin');
    let give = (): void => undefined;
    pair.receiver.room_free = new Promise((resolve) => {
      give = resolve;
    });
    const codes = ['b', 'c'].map((sequence) => {
      const transfer = sequence.repeat(begin!.transfer.length);
      const message = { ...begin!, transfer, offer: { ...begin!.offer, sequence } };
      return codeOf(pair.target.answer('the-source', message));
    });
    give();
    expect(await Promise.all(codes)).toEqual(['undefined', 'E_KV_MESSAGE']);
    await pair.target.close();
    // Of all rows that were taken nobody has any.
    expect(pair.receiver.committed.map(({ sequence }) => sequence)).toEqual(['a']);
    expect(pair.receiver.aborted.map(({ offer }) => offer.sequence)).toEqual(['b']);
  });

  it.each(kinds)(
    'bytes that changed on their way by %s: the sequence is not committed',
    async (_, options) => {
      const tamper = (message: KvMessage): KvMessage =>
        message.kind === 'finish'
          ? {
              ...message,
              headers: message.headers.map((header) => ({
                ...header,
                checksum: (header.checksum ^ 1) >>> 0,
              })),
            }
          : message;
      await using pair = await transferPair({ ...options, tamper });
      expect(await codeOf(pair.source.send(pair.peer, pair.outgoing('a', 100)))).toBe('E_KV_CHECKSUM');
      expect(pair.receiver.committed).toEqual([]);
      expect(pair.receiver.aborted).toMatchObject([{ because: { code: 'E_KV_CHECKSUM' } }]);
      expect(pair.target.links).toEqual([]);
    },
  );

  it('runs that are said to be others', async () => {
    const tamper = (message: KvMessage): KvMessage =>
      message.kind === 'finish'
        ? { ...message, headers: message.headers.map((header) => ({ ...header, generation: 7 })) }
        : message;
    await using pair = await transferPair({ ways: ['sendfile'], tamper });
    expect(await codeOf(pair.source.send(pair.peer, pair.outgoing('a', 100)))).toBe('E_KV_STALE');
    expect(pair.receiver.committed).toEqual([]);
  });

  it('a sequence that it has no room for; the way stays', async () => {
    await using pair = await transferPair({ ways: ['sendfile'] });
    pair.receiver.refusal = new HpcserveError('E_KV_ROOM', { what: 'no blocks' });
    expect(await codeOf(pair.source.send(pair.peer, pair.outgoing('a', 10)))).toBe('E_KV_ROOM');
    expect(pair.target.links).toHaveLength(1);
  });

  it('bytes in the clear where its network is not private', async () => {
    await using pair = await transferPair({
      ways: ['sendfile', 'tcp'],
      same_node: false,
      target: { private_fabric: false },
    });
    const sent = await pair.source.send(pair.peer, pair.outgoing('a', 10));
    expect(sent.way).toBe('tcp, encrypted');
    expect(pair.source.peers[0]!.fallbacks.map(({ way }) => way)).toEqual(['sendfile', 'tcp']);
    expect(pair.notices.join()).toContain('cannot travel by sendfile');
  });

  it.each([
    ['no message', 7],
    ['an unknown kind', { kind: 'read' }],
    ['a link that is none', { kind: 'close', link: '../x' }],
    [
      'gaps between runs',
      {
        runs: [
          { begin: 0, end: 5 },
          { begin: 6, end: 10 },
        ],
      },
    ],
    ['runs beyond the tokens', { runs: [{ begin: 0, end: 11 }] }],
    [
      'more tokens than a memory has',
      { tokens: { begin: 0, end: 2 ** 40 }, runs: [{ begin: 0, end: 2 ** 40 }] },
    ],
    ['an empty run', { runs: [{ begin: 0, end: 0 }] }],
    ['numbers that are none', { runs: [{ begin: 0, end: Number.POSITIVE_INFINITY }] }],
  ])('%s', async (_, wrong) => {
    await using pair = await transferPair({ ways: ['sendfile'] });
    if (typeof wrong === 'number' || 'kind' in wrong) {
      expect(await codeOf(pair.target.answer('the-source', wrong))).toBe('E_KV_MESSAGE');
      return;
    }
    expect(await codeOf(pair.source.send(pair.peer, pair.outgoing('a', 10, wrong)))).toBe('E_KV_TRANSFER');
    expect(pair.receiver.committed).toEqual([]);
  });

  it('more ways than it keeps', async () => {
    await using pair = await transferPair();
    const open = (at: number): KvMessage => ({
      kind: 'open',
      link: at.toString(16).padStart(32, '0'),
      way: 'tcp',
      ticket: '0'.repeat(64),
      failed: [],
    });
    for (let at = 0; at < 64; at++) await pair.target.answer('the-source', open(at));
    expect(await codeOf(pair.target.answer('the-source', open(64)))).toBe('E_KV_ROOM');
  });
});

describe('a way that the target has closed', () => {
  it('while nothing came by it is opened again, and is as good as before', async () => {
    await using pair = await transferPair({ ways: ['sendfile', 'tcp'] });
    await pair.source.send(pair.peer, pair.outgoing('a', 10));
    await pair.target.forget('the-source');
    const sent = await pair.source.send(pair.peer, pair.outgoing('b', 100));
    expect(sent.way).toBe('sendfile');
    expect(pair.source.peers).toMatchObject([{ transfers: 2, fallbacks_total: 0 }]);
    expect(pair.same(100)).toBe(true);
  });

  it('behind the last byte is not taken for what it refuses: the next transfer goes, by another way', async () => {
    let closed = false;
    const tamper = async (message: KvMessage): Promise<KvMessage> => {
      if (message.kind === 'finish' && !closed) {
        closed = true;
        await pair.target.forget('the-source');
      }
      return message;
    };
    await using pair = await transferPair({ ways: ['sendfile', 'tcp'], tamper });
    expect((await pair.source.send(pair.peer, pair.outgoing('a', 100))).way).toBe('tcp, not encrypted');
    await pair.source.send(pair.peer, pair.outgoing('b', 33));
    expect(pair.receiver.committed).toHaveLength(2);
  });

  it('is one of those that were not used for longest, where there are as many as it keeps', async () => {
    await using pair = await transferPair({ ways: ['sendfile'] });
    const others = Array.from({ length: 64 }, (_, at) => ({ ...pair.peer, session_id: `target-${at}` }));
    await pair.source.send(pair.peer, pair.outgoing('a', 10));
    for (const other of others) await pair.source.send(other, pair.outgoing('b', 10));
    expect(pair.target.links).toHaveLength(64);
    expect(pair.receiver.committed).toHaveLength(65);
    await pair.source.send(pair.peer, pair.outgoing('c', 10));
    expect(pair.receiver.committed).toHaveLength(66);
    // Who ends in order says so.
    await pair.source.close();
    expect(pair.target.links).toEqual([]);
  }, 30_000);
});

test('a peer is gone that was not there twice in a row', () => {
  const gone = new GonePeers();
  expect(gone.look(['a', 'b'], new Set(['a']))).toEqual([]);
  expect(gone.look(['a', 'b'], new Set())).toEqual(['b']);
  expect(gone.look(['a'], new Set(['a']))).toEqual([]);
  expect(gone.look(['a'], new Set())).toEqual([]);
  expect(gone.look(['a'], new Set())).toEqual(['a']);
});

describe('a peer that goes', () => {
  it('before it says that all was sent: rows are given back, and nothing writes to them', async () => {
    let cut = false;
    const tamper = (message: KvMessage): KvMessage | undefined => {
      if (message.kind !== 'finish' || cut) return message;
      cut = true;
      return { kind: 'close', link: message.link };
    };
    await using pair = await transferPair({ ways: ['sendfile', 'tcp'], tamper });
    const sent = await pair.source.send(pair.peer, pair.outgoing('a', 100));
    // The first way was given up, and the second brought it.
    expect(sent.way).toBe('tcp, not encrypted');
    expect(pair.receiver.aborted).toMatchObject([{ because: { code: 'E_KV_TRANSFER' } }]);
    expect(pair.receiver.committed).toHaveLength(1);
    expect(pair.same(100)).toBe(true);
  });

  it('at the source: the target hears of it and gives the rows back', async () => {
    let begin = (): void => undefined;
    const begun = new Promise<void>((resolve) => {
      begin = resolve;
    });
    const tamper = (message: KvMessage): KvMessage => {
      if (message.kind === 'begin') begin();
      return message;
    };
    await using pair = await transferPair({ ways: ['sendfile'], tamper });
    const sent = pair.source.send(pair.peer, pair.outgoing('a', tokens_max));
    await begun;
    await pair.target.forget('the-source');
    expect(await codeOf(sent)).toBe('E_KV_TRANSFER');
    expect(pair.receiver.committed).toEqual([]);
    expect(pair.target.links).toEqual([]);
  });

  it('and where nobody listens any more no way works, and that is said', async () => {
    await using pair = await transferPair({ ways: ['sendfile', 'tcp'] });
    await pair.source.send(pair.peer, pair.outgoing('a', 10));
    await pair.target.close();
    const gone = { ...pair.peer, ask: () => Promise.reject(new Error('it is gone')) };
    const failure = await pair.source.send(gone, pair.outgoing('a', 10)).catch((error: unknown) => error);
    expect(failure).toMatchObject({ code: 'E_KV_TRANSFER' });
    expect((failure as HpcserveError).because.join()).toContain('it is gone');
  });
});

it.each([
  ['from another node', false, 'tcp, encrypted'],
  ['within a node', true, 'sendfile'],
])(
  'nobody gets in who was not told how, and nothing listens after a peer has come %s',
  async (_, same_node, way) => {
    const opened: { port?: number }[] = [];
    await using pair = await transferPair({ private_fabric: false, same_node });
    const answer = pair.peer.ask;
    const peer = {
      ...pair.peer,
      ask: async (message: KvMessage, limit_ms: number) => {
        const said = await answer(message, limit_ms);
        if (message.kind === 'open') {
          opened.push(said as { port?: number });
          // A stranger is there first, and says what strangers say.
          const stranger = connect({ host: '127.0.0.1', port: opened[0]!.port! });
          stranger.on('error', () => undefined);
          stranger.write('GET / HTTP/1.1\r\n\r\n');
        }
        return said;
      },
    };
    expect(await pair.source.send(peer, pair.outgoing('a', 100))).toMatchObject({ way });
    expect(pair.same(100)).toBe(true);
    const late = await new Promise<string>((resolve) => {
      const socket = connect({ host: '127.0.0.1', port: opened[0]!.port! });
      socket.once('error', (error: NodeJS.ErrnoException) => resolve(String(error.code)));
      socket.once('connect', () => resolve('connected'));
    });
    expect(late).toBe('ECONNREFUSED');
  },
);
