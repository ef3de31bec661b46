/** Ends between which frames are passed, one on its way at a time, each in a process of its own. */
import { type ChildProcess, fork } from 'node:child_process';
import { once } from 'node:events';
import { existsSync } from 'node:fs';
import { createConnection } from 'node:net';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import type { FabricPlace } from '../../agent/pipeline/fabric-frames.ts';
import type { FrameBytes } from '../../agent/pipeline/frame.ts';
import { FrameAssembler } from '../../agent/pipeline/frame-assembler.ts';
import { Ring } from '../../agent/pipeline/ring.ts';
import type { FromRing } from '../../agent/pipeline/ring-messages.ts';
import type { AgentPlace, AgentWays } from './agent.ts';
import type { FarEnd } from './far-end.ts';

/** One end, to which a frame is sent and which says when the other one has it. */
export interface Way {
  /** Its other processes. */
  children: ChildProcess[];
  pass(frame: FrameBytes): Promise<void>;
  close(): void;
}

const program = (name: string): string => fileURLToPath(new URL(name, import.meta.url));

/** Sends, and resolves with the answer. */
class Passing {
  #arrived: () => void = () => undefined;

  answered(): void {
    this.#arrived();
  }

  by(send: (frame: FrameBytes) => void): (frame: FrameBytes) => Promise<void> {
    return (frame) =>
      new Promise((resolve) => {
        this.#arrived = resolve;
        send(frame);
      });
  }
}

/** @param isOpen of what the ring tells, until frames can be passed */
async function openRing(
  { listen, next, fabrics }: FarEnd,
  passing: Passing,
  isOpen: (message: FromRing) => boolean,
): Promise<Ring> {
  return new Promise((resolve) => {
    const told = (message: FromRing): void => {
      if (isOpen(message)) setImmediate(() => resolve(ring));
      if (message.type === 'frame') passing.answered();
    };
    const ring = new Ring(listen, next, told, fabrics);
  });
}

/** Two stages of one node. */
export async function openWithin(way: FarEnd['way'], folder: string): Promise<Way> {
  const [listen, next] = ['far', 'near'].map((end) => join(folder, `${way}-${end}`)) as [string, string];
  const child = fork(program('./far-end.js'));
  child.send({ way, listen, next } satisfies FarEnd);
  const passing = new Passing();
  if (way === 'ring') {
    const near: FarEnd = { way, listen: next, next: listen };
    const ring = await openRing(near, passing, ({ type }) => type === 'up');
    return { children: [child], pass: passing.by((frame) => ring.send(frame)), close: () => ring.close() };
  }
  while (!existsSync(listen)) await delay(10);
  const socket = createConnection(listen);
  await once(socket, 'connect');
  const assembler = new FrameAssembler();
  socket.on('data', (chunk) => assembler.take(chunk, () => passing.answered()));
  const pass = passing.by((frame) => void socket.write(frame));
  return { children: [child], pass, close: () => socket.destroy() };
}

/**
 * Two stages as on two nodes of one machine: neither sees the other's memory (process ids of its own, for which Linux
 * wants root), and their connection passes two agents.
 * @param provider of libfabric; absent: frames pass the agents, too
 */
export async function openBetween(folder: string, provider?: string): Promise<Way> {
  const name = provider ?? 'agents';
  const path = (end: string): string => join(folder, `${name}-${end}`);
  const agents = [fork(program('./agent.js')), fork(program('./agent.js'))] as const;
  const [here, there] = (await Promise.all(
    agents.map(async (agent) => (await once(agent, 'message'))[0]),
  )) as [AgentPlace, AgentPlace];
  agents[0].send({ listen: path('there'), stage: path('near'), other: there } satisfies AgentWays);
  agents[1].send({ listen: path('here'), stage: path('far'), other: here } satisfies AgentWays);
  const fabrics: FabricPlace | undefined = provider
    ? { host: '127.0.0.1', providers: [provider], are_named: true }
    : undefined;
  const execArgv = ['--pid', '--fork', '--mount-proc', '--kill-child', process.execPath];
  const far = fork(program('./far-end.js'), [], { execPath: 'unshare', execArgv });
  far.send({ way: 'ring', listen: path('far'), next: path('here'), fabrics } satisfies FarEnd);
  const passing = new Passing();
  const near: FarEnd = { way: 'ring', listen: path('near'), next: path('there'), fabrics };
  const ring = await openRing(near, passing, (message) => {
    if (message.type === 'notice') throw new Error(message.error.because.join('; '));
    return provider ? message.type === 'way' && message.provider === provider : message.type === 'up';
  });
  return {
    children: [...agents, far],
    pass: passing.by((frame) => ring.send(frame)),
    close: () => ring.close(),
  };
}
