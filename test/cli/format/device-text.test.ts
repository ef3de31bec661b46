import { describe, expect, it } from 'vitest';
import { type DeviceTextOptions, deviceLines } from '../../../cli/format/device-text.ts';
import { describeIsa } from '../../../cli/format/isa.ts';
import type { SharedDevice } from '../../../control/gateway/admin.ts';
import { type DeviceReport, deviceReportSchema } from '../../../spec/device-report.ts';

const MiB = 2 ** 20;
const options: DeviceTextOptions = { colour: false, width: Number.POSITIVE_INFINITY, decisions: 1 };

function report(changes: Partial<DeviceReport> = {}): DeviceReport {
  const instance = {
    max_sequences: 8,
    weight_bytes: 600 * MiB,
    kv_bytes: 128 * MiB,
    kv_used_bytes: 32 * MiB,
    kv_required_bytes: 100 * MiB,
    prompts: 0,
    decoding: 0,
    waiting: 0,
  };
  const profile = { prefill_points: 3, decode_points: 6, prefill_512_ms: 740, decode_512_ms: 61.25 };
  return deviceReportSchema.parse({
    format: 1,
    at_ms: Date.UTC(2026, 0, 1, 12),
    pid: 7,
    device: { name: 'Xeon', threads: 8, isa: ['AVX512', 'AMX_INT8', 'AVX2'] },
    memory: {
      pss_bytes: 1024 * MiB,
      parts: [
        { name: 'pool', bytes: 960 * MiB },
        { name: 'stacks', bytes: 0 },
      ],
      unexplained_bytes: 64 * MiB,
      pool: {
        pool_bytes: 1000 * MiB,
        weights_bytes: 500 * MiB,
        reusable_bytes: 100 * MiB,
        kv_bytes: 200 * MiB,
        scratch_bytes: 0,
        lost_bytes: 0,
        resident_bytes: 960 * MiB,
        outside_pool_bytes: 64 * MiB,
        models: [],
        resident_models: [],
        free_bytes: 200 * MiB,
        largest_free_bytes: 150 * MiB,
        regions: 9,
      },
    },
    instances: [
      {
        ...instance,
        model: 'chat',
        slo: { tpot_ms: 50 },
        decoding: 2,
        headroom_ms: -3.5,
        profile: { ...profile, keeps_level: false },
      },
      { ...instance, model: 'batch\u001b[2J', idle_ms: 5, profile },
    ],
    scheduler: { iterations: 10, computing_ms: 900, deciding_ms: 9, admitted: 2, refused: 1, evicted: 0 },
    decisions: [
      { at_ms: Date.UTC(2026, 0, 1, 11, 59, 58), kind: 'admit', model: 'chat', because: 'earlier' },
      {
        at_ms: Date.UTC(2026, 0, 1, 11, 59, 59),
        kind: 'refuse',
        model: 'chat',
        request: 3,
        because: 'too late',
      },
    ],
    ...changes,
  });
}

const device = (changes: Partial<SharedDevice>): SharedDevice => ({
  session_id: 's',
  node: 'nid1',
  site: 'here',
  devices: [{ kind: 'cpu', model: 'Xeon' }],
  ...changes,
});

describe('a device as text', () => {
  it('says which kernels are left out, below what the device is', () => {
    const left_out = ['the AMX kernel for Q8_0 matrices is wrong on this CPU: plain kernels take its place'];
    const changed = report({ device: { name: 'Xeon', threads: 8, isa: ['AMX_INT8'], left_out } });
    const lines = deviceLines(device({ report: changed }), options);
    expect(lines[1]).toBe(`  left out: ${left_out[0]}`);
  });

  it('shows memory, models with their promises, and the last decision with its reason', () => {
    const lines = deviceLines(device({ deployment: 'demo', job_id: '42', report: report() }), options);
    expect(lines).toEqual([
      'Xeon  nid1, demo, job 42  8 threads, AMX, AVX-512; 2 let in, 1 refused',
      '  memory  1.00 GiB = pool 960 MiB + unexplained 64.0 MiB',
      `  pool    [${'#'.repeat(30)}${'+'.repeat(6)}${'='.repeat(12)}${'.'.repeat(12)}]`,
      '          # weights 500 MiB  + reusable 100 MiB  = KV 200 MiB  ~ scratch 0 B  . free 200 MiB of 0.98 GiB; 25 % of what is free is in fragments',
      '  MODEL         PROMISE             PROMPTS  DECODING  WAITING  HEADROOM  WEIGHTS   KV USED  SET ASIDE  REQUIRED  512 TOKENS  A TOKEN',
      '  chat          ·/50 ms (too slow)        0         2        0   -3.5 ms  600 MiB  32.0 MiB    128 MiB   100 MiB     ~740 ms   ~61 ms',
      '  batch\\x1b[2J  -                         0         0        0         -  600 MiB  32.0 MiB    128 MiB   100 MiB     ~740 ms   ~61 ms',
      '  11:59:59 refuse  chat: too late',
    ]);
  });

  it('shows KV of requests that gave way where it waits, and what is wrong with its disk', () => {
    const { scheduler } = report();
    const linesOf = (parked: NonNullable<DeviceReport['scheduler']['parked']>): string[] =>
      deviceLines(device({ report: report({ scheduler: { ...scheduler, parked } }) }), options).filter(
        (line) => line.includes('KV o'),
      );
    expect(linesOf({ memory_bytes: 0 })).toEqual([]);
    expect(linesOf({ memory_bytes: 3 * MiB })).toEqual([
      '  KV of requests that gave way: 3.00 MiB in host memory',
    ]);
    const disk = { disk_bytes: 5 * MiB, disk_bytes_per_s: 250 * MiB };
    expect(linesOf({ memory_bytes: 3 * MiB, ...disk, disk_trouble: 'ENOSPC: no space left' })).toEqual([
      '  KV of requests that gave way: 3.00 MiB in host memory, 5.00 MiB on disk (250 MiB/s there and back)',
      '  KV on disk: ENOSPC: no space left',
    ]);
  });

  it('folds lines and leaves columns out where the terminal is narrow, and keeps who waits how long', () => {
    for (const width of [100, 60, 40]) {
      const lines = deviceLines(device({ deployment: 'demo', job_id: '42', report: report() }), {
        ...options,
        colour: true,
        width,
      });
      const plain = lines.map((line) => line.replaceAll(/\u001b\[[0-9;]*m/g, ''));
      for (const line of plain) expect([...line].length, line).toBeLessThanOrEqual(width);
      const [titles, chat] = plain.slice(plain.findIndex((line) => line.startsWith('  MODEL')));
      expect(titles).toMatch(/ DECODING .*HEADROOM/);
      expect(chat).toMatch(/^ {2}chat .* 2 .*-3\.5 ms/);
      expect(plain.join(' ').replaceAll(/ +/g, ' ')).toContain('25 % of what is free is in fragments');
    }
  });

  it('shows shares of the time since the last look at the same worker, and why a worker says nothing', () => {
    const before = report({ at_ms: Date.UTC(2026, 0, 1, 11, 59, 58) });
    const later = report({ scheduler: { ...before.scheduler, computing_ms: 1900, deciding_ms: 19 } });
    const title = (one: DeviceReport): string =>
      deviceLines(device({ report: one }), { ...options, before })[0]!;
    expect(title(later)).toContain('; 50 % busy, 1.0 % of it deciding; 2 let in');
    expect(title({ ...later, pid: 8 })).not.toContain('busy');
    expect(deviceLines(device({ error: 'it is gone' }), options)).toEqual(['Xeon  nid1', '  it is gone']);
  });

  it('names instruction sets as people do, the two most able', () => {
    expect(describeIsa(['sse4_2', 'avx2', 'avx512_vnni', 'amx_int8'])).toBe('AMX, AVX-512');
    expect(describeIsa(['AVX2', 'FMA'])).toBe('AVX2');
    expect(describeIsa(['asimd', 'sve2'])).toBe('SVE, NEON');
    expect(describeIsa([])).toBe('');
  });

  it('says of weights in host memory what stays, what a step brings, and why that is slow', () => {
    const [lying, , ...rest] = report().instances;
    expect(rest).toEqual([]);
    const streamed = {
      arena_bytes: 64 * MiB,
      resident_bytes: 100 * MiB,
      step_bytes: 500 * MiB,
      link_bytes_per_s: 1234 * MiB,
    };
    const linesOf = (told: object): string[] =>
      deviceLines(
        device({
          report: report({
            instances: [lying!, { ...lying!, model: 'tail', streamed: { ...streamed, ...told } }],
          }),
        }),
        options,
      ).filter((line) => line.startsWith('  streamed:'));
    expect(linesOf({})).toEqual([
      '  streamed: tail: layers of 100 MiB stay there; a step brings 500 MiB at 1.21 GiB/s',
    ]);
    expect(
      linesOf({ resident_bytes: 0, link_bytes_per_s: undefined, because: ['a neighbour reads'] }),
    ).toEqual(['  streamed: tail: a step brings 500 MiB; a neighbour reads']);
    expect(linesOf({ step_bytes: 0 })).toEqual([
      '  streamed: tail: layers of 100 MiB stay there; no step brings any',
    ]);
    expect(linesOf({ step_bytes: 123.4 * MiB, experts_at_hand: 0.876 })).toEqual([
      '  streamed: tail: layers of 100 MiB stay there; a step brings 124 MiB on average at 1.21 GiB/s; 88 % of the experts that are needed are at hand',
    ]);
  });

  it('says what is due of the link that weights are streamed over', () => {
    const linesOf = (changes: Partial<SharedDevice>): string[] => {
      const lines = deviceLines(device({ report: report(), ...changes }), options);
      return lines.filter((line) => line.startsWith('  link'));
    };
    const linkOf = (link: NonNullable<SharedDevice['link']>): string[] => linesOf({ link });
    expect(linesOf({})).toEqual([]);
    const GiB = 1024 * MiB;
    expect(
      linkOf({ devices: 4, reading: 2, due_bytes_per_s: 120 * GiB, capacity_bytes_per_s: 350 * GiB }),
    ).toEqual([
      '  link to host memory that 4 devices share, 2 of them reading: 120 GiB/s are due of 350 GiB/s',
    ]);
    expect(linkOf({ devices: 1, reading: 0, due_bytes_per_s: 0 })).toEqual([
      '  link to host memory of its own: 0 B/s are due',
    ]);
  });

  it('says how far a load is, and how fast', () => {
    const loading = [
      {
        model: 'large',
        bytes_loaded: 512 * MiB,
        bytes_total: 2048 * MiB,
        bytes_per_s: 256 * MiB,
        legs: [
          { leg: 'disk', bytes: 512 * MiB, bytes_per_s: 128 * MiB },
          { leg: 'upload', bytes: 512 * MiB, bytes_per_s: 2048 * MiB },
        ],
      },
    ];
    const lines = deviceLines(device({ report: report({ loading }) }), options);
    expect(lines).toContain(
      '  loading large: 512 MiB of 2.00 GiB at 256 MiB/s (a thread: disk 128 MiB/s, upload 2.00 GiB/s)',
    );
  });
});
