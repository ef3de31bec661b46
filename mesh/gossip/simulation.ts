/**
 * Members on a network that exists only here, by seed: delay, loss, partitions, members that fall silent, clocks that
 * are wrong. The members are the ones of `member.ts`, line for line.
 */
import { GossipMember, type GossipMemberOptions } from './member.ts';
import { type GossipMessage, type GossipRecord, left } from './messages.ts';
import { defaultGossipSettings, type GossipSettings } from './settings.ts';

export interface SimulationOptions {
  members: number;
  seed: number;
  /** Share of messages that are lost, each way. */
  loss: number;
  /** One way, drawn evenly between these, ms. */
  delay_ms: readonly [least: number, most: number];
  /** Clocks of members are wrong by up to so much, ms. */
  clock_error_ms?: number;
  settings?: Partial<GossipSettings>;
}

interface Event {
  at_ms: number;
  /** Of events at the same time, in the order in which they were made. */
  order: number;
  to: number;
  from?: string;
  message?: GossipMessage;
}

interface Node {
  member: GossipMember;
  clock_ms: number;
  /** Told nothing and says nothing. */
  silent: boolean;
  /** Part of the network it is in; parts do not reach each other. */
  part: number;
  wakes_at_ms: number;
  sessions: number;
}

export class GossipSimulation {
  now_ms = 0;
  messages = 0;
  readonly nodes: Node[] = [];
  readonly #options: SimulationOptions;
  readonly #settings: GossipSettings;
  readonly #random: () => number;
  readonly #events = new Heap();
  #order = 0;

  /** All members know each other, as after some time in peace. */
  constructor(options: SimulationOptions) {
    this.#options = options;
    this.#settings = { ...defaultGossipSettings, ...options.settings };
    this.#random = mulberry32(options.seed);
    for (let at = 0; at < options.members; at++) this.#add();
    const all = this.nodes.map(({ member }) => member.own);
    for (const node of this.nodes) for (const record of all) node.member.records.merge(record);
    // What everybody knows is no news.
    this.run(3_000);
  }

  /** A new member that knows one other. @returns its number */
  join(known = 0): number {
    const at = this.#add();
    this.#send(at, this.nodes[at]!.member.join(addressOf(known)));
    return at;
  }

  /** Runs for so long. */
  run(duration_ms: number): void {
    const end_ms = this.now_ms + duration_ms;
    for (;;) {
      const event = this.#events.peek();
      if (event === undefined || event.at_ms > end_ms) break;
      this.#events.pop();
      this.now_ms = event.at_ms;
      this.#happen(event);
    }
    this.now_ms = end_ms;
  }

  /** Runs until it is so, looking each `step_ms`. @returns how long that took; Infinity where it took too long */
  until(condition: () => boolean, { step_ms, most_ms }: { step_ms: number; most_ms: number }): number {
    const start_ms = this.now_ms;
    while (!condition()) {
      if (this.now_ms - start_ms >= most_ms) return Number.POSITIVE_INFINITY;
      this.run(step_ms);
    }
    return this.now_ms - start_ms;
  }

  /** Members that speak, whatever others think of them. */
  get speaking(): Node[] {
    return this.nodes.filter(({ silent }) => !silent);
  }

  /** Whether every member that speaks knows exactly the sessions of those that speak as not left. */
  get agrees(): boolean {
    const live = this.speaking.map(({ member }) => member.own.session_id).sort();
    return this.speaking.every(({ member }) => {
      const { ring } = member.records;
      return ring.length === live.length && ring.every((id, at) => id === live[at]);
    });
  }

  #add(): number {
    const at = this.nodes.length;
    const clock_ms = onGrid((2 * this.#random() - 1) * (this.#options.clock_error_ms ?? 0));
    const node: Node = {
      member: undefined as never,
      clock_ms,
      silent: false,
      part: 0,
      wakes_at_ms: Number.POSITIVE_INFINITY,
      sessions: 0,
    };
    const record = (): GossipRecord => ({
      session_id: Array.from({ length: 4 }, () =>
        Math.floor(this.#random() * 2 ** 32)
          .toString(16)
          .padStart(8, '0'),
      ).join(''),
      address: addressOf(at),
      lifecycle: 1,
      version: node.sessions++,
      envelope: new Uint8Array(0),
    });
    const options: GossipMemberOptions = {
      own: record(),
      assertLeft: (known) => ({ ...known, lifecycle: left }),
      comeBack: record,
      settings: this.#settings,
      random: this.#random,
    };
    node.member = new GossipMember(options, this.#local(node));
    this.nodes.push(node);
    this.#wake(at);
    return at;
  }

  #local(node: Node): number {
    return this.now_ms + node.clock_ms;
  }

  #happen({ to, from, message, at_ms }: Event): void {
    const node = this.nodes[to]!;
    if (node.silent) return;
    if (message === undefined) {
      if (node.wakes_at_ms !== at_ms) return;
      node.wakes_at_ms = Number.POSITIVE_INFINITY;
      this.#send(to, node.member.tick(this.#local(node)));
    } else this.#send(to, node.member.receive(from!, message, this.#local(node)));
    this.#wake(to);
  }

  #send(from: number, outgoing: readonly { to: string; message: GossipMessage }[]): void {
    const [least, most] = this.#options.delay_ms;
    for (const { to, message } of outgoing) {
      this.messages++;
      const receiver = Number(to.slice(1));
      if (this.#random() < this.#options.loss) continue;
      if (this.nodes[receiver]!.part !== this.nodes[from]!.part) continue;
      const at_ms = this.now_ms + onGrid(least + this.#random() * (most - least));
      this.#events.push({ at_ms, order: this.#order++, to: receiver, from: addressOf(from), message });
    }
  }

  #wake(at: number): void {
    const node = this.nodes[at]!;
    const at_ms = Math.max(this.now_ms, onGrid(node.member.nextTick_ms() - node.clock_ms));
    if (at_ms >= node.wakes_at_ms) return;
    node.wakes_at_ms = at_ms;
    this.#events.push({ at_ms, order: this.#order++, to: at });
  }
}

/** The next 1024th of a millisecond: sums of such times are exact, so that nobody is woken a rounding error too early. */
function onGrid(ms: number): number {
  return Math.ceil(ms * 1024) / 1024;
}

function addressOf(at: number): string {
  return `n${at}`;
}

/** Same numbers from the same seed (Tommy Ettinger's mulberry32). */
function mulberry32(seed: number): () => number {
  let state = seed | 0;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

/** Events by time, then by order. */
class Heap {
  readonly #events: Event[] = [];

  peek(): Event | undefined {
    return this.#events[0];
  }

  push(event: Event): void {
    const events = this.#events;
    let at = events.length;
    events.push(event);
    while (at > 0) {
      const parent = (at - 1) >> 1;
      if (!before(event, events[parent]!)) break;
      events[at] = events[parent]!;
      at = parent;
    }
    events[at] = event;
  }

  pop(): void {
    const events = this.#events;
    const last = events.pop();
    if (last === undefined || events.length === 0) return;
    let at = 0;
    for (;;) {
      let child = 2 * at + 1;
      if (child >= events.length) break;
      if (child + 1 < events.length && before(events[child + 1]!, events[child]!)) child++;
      if (!before(events[child]!, last)) break;
      events[at] = events[child]!;
      at = child;
    }
    events[at] = last;
  }
}

function before(a: Event, b: Event): boolean {
  return a.at_ms < b.at_ms || (a.at_ms === b.at_ms && a.order < b.order);
}
