import type { UnitSpec } from '../../spec/launch.ts';
import type { AgentLog } from './log.ts';
import type { StageLayout } from './stage-layout.ts';

/** Between two tries to tell nodes that did not answer. Lower: they know sooner; higher: less is asked of lost ones. */
const retry_ms = 5000;

/** Another node that a unit counts. */
interface ToldNode {
  node: string;
  node_index: number;
  /** See `ElsewhereStages`. */
  settle(unit: string, layout: StageLayout, isDone: boolean): Promise<number | undefined>;
}

interface Untold {
  unit: UnitSpec;
  layout: StageLayout;
  /** Among the nodes that its unit counts. */
  nodes: Set<number>;
}

interface UntoldOptions {
  /** Other nodes that a unit counts, as far as their agents can be asked. */
  others(unit: UnitSpec): ToldNode[];
  /** A node has the layout of a later ring than the one that it is told. */
  behind(unit: UnitSpec, layout: StageLayout, ring: number): Promise<void>;
  log: AgentLog;
}

/**
 * Nodes that are yet to hear which layout a pipeline has whose coordinator is here. They are told until they answer: as
 * long as one has not, it may lack a stage that the pipeline waits for, and hold one that it has no more. Only the last
 * layout of a unit is told, and a node that has it says so.
 */
export class UntoldNodes {
  readonly #options: UntoldOptions;
  /** By unit. */
  readonly #untold = new Map<string, Untold>();
  /** Tellings that are under way, by unit. */
  readonly #telling = new Map<string, { untold: Untold; done: Promise<void> }>();
  readonly #timer: NodeJS.Timeout;

  constructor(options: UntoldOptions) {
    this.#options = options;
    this.#timer = setInterval(() => {
      for (const name of this.#untold.keys()) void this.tell(name);
    }, retry_ms);
    this.#timer.unref();
  }

  close(): void {
    clearInterval(this.#timer);
    this.#untold.clear();
  }

  /** @param nodes that do not know a layout which a unit has from now on */
  add(unit: UnitSpec, layout: StageLayout, nodes: Iterable<number>): void {
    this.#untold.set(unit.unit, { unit, layout, nodes: new Set(nodes) });
  }

  /** All that can be asked are told once. @returns those that still do not know */
  async tell(name: string): Promise<ReadonlySet<number>> {
    for (;;) {
      const untold = this.#untold.get(name);
      if (!untold) return new Set();
      let telling = this.#telling.get(name);
      if (!telling) {
        telling = { untold, done: this.#tellAll(untold).finally(() => this.#telling.delete(name)) };
        this.#telling.set(name, telling);
      }
      await telling.done;
      // What was told was the layout before it.
      if (telling.untold !== untold || this.#untold.get(name) !== untold) continue;
      if (untold.nodes.size === 0) this.#untold.delete(name);
      return untold.nodes;
    }
  }

  async #tellAll({ unit, layout, nodes }: Untold): Promise<void> {
    const { others, behind, log } = this.#options;
    let later = layout.ring;
    const there = others(unit).filter(({ node_index }) => nodes.has(node_index));
    await Promise.all(
      there.map(async (each) => {
        const ring = await each.settle(unit.unit, layout, true);
        if (ring === undefined) return;
        later = Math.max(later, ring);
        if (ring > layout.ring) return;
        nodes.delete(each.node_index);
        log.info({ unit: unit.unit, node: each.node, ring: layout.ring }, 'a node knows its stages');
      }),
    );
    if (later > layout.ring) await behind(unit, layout, later);
  }
}
