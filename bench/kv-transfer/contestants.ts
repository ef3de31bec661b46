import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { createInterface } from 'node:readline';
import { FabricEnd } from '../../native/fabric/fabric.ts';
import { pairPieces } from '../../native/fabric/memory.ts';
import { Mover } from '../../native/fabric/mover.ts';
import { memory_bytes, piecesOf, type Round, type Timed } from './rounds.ts';
import { bench_header, bench_patience, bench_ticket, type benchMemory, type TargetCall } from './target.ts';

/** Something that moves the bytes of a round. */
export interface Contestant {
  run(round: Round): Promise<Timed>;
  close(): Promise<void>;
}

/** Where the receiving side runs: an address, and what its programs are started through. */
export interface Network {
  name: string;
  address: string;
  through: readonly string[];
}

function lines(child: ChildProcess): () => Promise<string> {
  const reader = createInterface({ input: child.stdout! });
  const iterator = reader[Symbol.asyncIterator]();
  return async () => {
    const { value, done } = await iterator.next();
    if (done) throw new Error('a program of the bench has ended');
    return value as string;
  };
}

/** `send()` of a program in C to a `recv()` in C; without a network memcpy in one process. */
export async function plainC(program: string, network: Network | undefined): Promise<Contestant> {
  const started: ChildProcess[] = [];
  const start = (argv: readonly string[]): ChildProcess => {
    const child = spawn(argv[0]!, argv.slice(1), { stdio: ['pipe', 'pipe', 'inherit'] });
    started.push(child);
    return child;
  };
  let sender: ChildProcess;
  if (network) {
    const port = await lines(start([...network.through, program, 'recv', network.address]))();
    sender = start([program, 'send', network.address, port]);
  } else sender = start([program, 'memcpy']);
  const next = lines(sender);
  return {
    run: async ({ bytes, piece_bytes, transfers }) => {
      sender.stdin!.write(`${bytes} ${piece_bytes} ${transfers}\n`);
      const [wall_ns = 0, cpu_ns = 0] = (await next()).split(' ').map(Number);
      return { wall_ms: wall_ns / 1e6, cpu_ms: cpu_ns / 1e6 };
    },
    close: async () => {
      for (const child of started) {
        if (child.exitCode === null) child.kill('SIGKILL');
      }
    },
  };
}

/** The process on the other side of ours. */
export class Target {
  readonly #child: ChildProcess;
  readonly #answers = new Map<number, (result: unknown) => void>();
  #next = 1;

  private constructor(child: ChildProcess) {
    this.#child = child;
    child.on('message', ({ number, result }: { number: number; result: unknown }) => {
      this.#answers.get(number)?.(result);
      this.#answers.delete(number);
    });
  }

  static async start({ through, address }: Network): Promise<Target> {
    const module = new URL('target.js', import.meta.url).pathname;
    const [program, ...args] = [...through, process.execPath, module, address];
    const child = spawn(program!, args, {
      stdio: ['ignore', 'inherit', 'inherit', 'ipc'],
      serialization: 'advanced',
    });
    await once(child, 'message');
    return new Target(child);
  }

  ask<T>(call: TargetCall): Promise<T> {
    const number = this.#next++;
    return new Promise((resolve) => {
      this.#answers.set(number, resolve as (result: unknown) => void);
      this.#child.send({ number, call });
    });
  }

  end(): void {
    this.#child.kill('SIGKILL');
  }
}

type Memory = ReturnType<typeof benchMemory>;

/** Our sockets: by sendfile, or as ordinary writes. */
export async function ourSockets(
  memory: Memory,
  target: Target,
  address: string,
): Promise<(how: { sendfile: boolean; checksum: boolean }) => Contestant> {
  const mover = new Mover(memory);
  const port = await target.ask<number>({ call: 'listen' });
  const socket = await mover.connect(address, port, bench_ticket, bench_ticket, 5000);
  return (how) => ({
    run: async (round) => {
      await target.ask({ call: 'receive', round, checksum: how.checksum });
      const started_ms = performance.now();
      const sent = Array.from({ length: round.transfers }, (_, at) =>
        mover.send(socket, bench_header, piecesOf(round, at), bench_patience, how),
      );
      const whole = mover.receive(socket, bench_header, [], bench_patience);
      const moved = await Promise.all([...sent, whole]);
      return {
        wall_ms: performance.now() - started_ms,
        cpu_ms: moved.reduce((sum, { cpu_ms }) => sum + cpu_ms, 0),
      };
    },
    close: () => mover.close(),
  });
}

/** Writes by libfabric: each is over when the target has it. */
export async function ourFabric(
  memory: Memory,
  target: Target,
  provider: string,
  address: string,
): Promise<Contestant> {
  const end = await FabricEnd.open(provider, provider === 'shm' ? '' : address, memory);
  const { name, numbers } = await target.ask<{ name: Uint8Array; numbers: bigint[] }>({
    call: 'fabric',
    provider,
  });
  await end.connect({ name, numbers: BigUint64Array.from(numbers) });
  await end.probe(new Uint8Array(64), 5000);
  return {
    run: async (round) => {
      const started_ms = performance.now();
      const writes = Array.from({ length: round.transfers }, (_, at) => {
        const pieces = piecesOf(round, at);
        return end.write(pairPieces(pieces, pieces), memory_bytes, bench_patience);
      });
      const moved = await Promise.all(writes);
      return {
        wall_ms: performance.now() - started_ms,
        cpu_ms: moved.reduce((sum, { cpu_ms }) => sum + cpu_ms, 0),
      };
    },
    close: () => end.close(),
  };
}
