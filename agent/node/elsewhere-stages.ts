import { setTimeout as delay } from 'node:timers/promises';
import type { SessionRecord } from '../../spec/session-record.ts';
import { agentPaths } from '../../spec/wire.ts';
import { JsonLines } from './json-lines.ts';
import type { PipelineAgents } from './pipeline-agents.ts';
import {
  type ChangeAnswer,
  type ChangeOrder,
  changeAnswerSchema,
  changes_protocol,
} from './stage-changes.ts';
import type { StageLayout } from './stage-layout.ts';

/** An agent that has not answered by then is taken to be gone: it only tells its workers. */
const answer_ms = 10_000;

/**
 * Another node whose devices have stages in a layout that is to come, for the agent that drives the change. It lasts as
 * long as the connection: see `StageChanges`.
 */
export class ElsewhereStages {
  readonly node: string;
  readonly node_index: number;
  /** Resolves with why, where the node or one of its workers is gone. */
  readonly lost: Promise<string>;
  #lines: JsonLines<ChangeAnswer, ChangeOrder> | undefined;
  #lose: (because: string) => void = () => undefined;
  #answer: (answer: ChangeAnswer | undefined) => void = () => undefined;
  readonly #agents: PipelineAgents;
  readonly #record: SessionRecord;

  constructor(agents: PipelineAgents, record: SessionRecord) {
    this.#agents = agents;
    this.#record = record;
    this.node = record.metadata.node;
    this.node_index = record.metadata.node_index!;
    this.lost = new Promise((resolve) => {
      this.#lose = resolve;
    });
  }

  /** @returns the identities of its devices, or why not, and which ring it has */
  async prepare(
    unit: string,
    layout: StageLayout,
  ): Promise<string[] | { refused: string; ring?: number | undefined }> {
    const answer = await this.#ask({ type: 'prepare', unit, layout });
    if (answer?.type === 'prepared') return answer.identities;
    if (answer?.type !== 'refused') return { refused: 'its agent does not answer' };
    return { refused: answer.because, ring: answer.ring };
  }

  /**
   * It is over.
   * @returns the ring that the node has, a later one than that of the layout perhaps; undefined: it does not know
   */
  async settle(unit: string, layout: StageLayout, isDone: boolean): Promise<number | undefined> {
    const answer = await this.#ask({ type: 'settle', unit, layout, isDone });
    this.close();
    return answer?.type === 'settled' ? (answer.ring ?? layout.ring) : undefined;
  }

  /**
   * The node is that of the first stage, and this one is to go: its stages come to others within that time.
   * @returns why not; undefined: nothing of it is needed here any more
   */
  async leave(unit: string, node_index: number, left_ms: number): Promise<string | undefined> {
    // Graces are fractions of what Slurm gives.
    const whole_ms = Math.floor(left_ms);
    const answer = await this.#ask({ type: 'leave', unit, node_index, left_ms: whole_ms }, whole_ms);
    this.close();
    if (answer?.type === 'left') return undefined;
    return answer?.type === 'refused' ? answer.because : `the agent of node ${this.node} does not answer`;
  }

  close(): void {
    this.#lines?.close();
  }

  async #ask(order: ChangeOrder, limit_ms = answer_ms): Promise<ChangeAnswer | undefined> {
    this.#lines ??= await this.#connect();
    if (!this.#lines) return undefined;
    const answer = new Promise<ChangeAnswer | undefined>((resolve) => {
      this.#answer = resolve;
    });
    this.#lines.send(order);
    const late = new AbortController();
    const silence = delay(limit_ms, undefined, { signal: late.signal, ref: false }).catch(() => undefined);
    try {
      return await Promise.race([answer, silence]);
    } finally {
      late.abort();
    }
  }

  async #connect(): Promise<JsonLines<ChangeAnswer, ChangeOrder> | undefined> {
    const way = await this.#agents
      .ask(this.#record, agentPaths.stage_changes, changes_protocol)
      .catch(() => undefined);
    if (!way) return undefined;
    return new JsonLines<ChangeAnswer, ChangeOrder>(
      way,
      changeAnswerSchema,
      (message) => (message.type === 'ended' ? this.#lose(message.because) : this.#answer(message)),
      () => {
        this.#lines = undefined;
        this.#answer(undefined);
        this.#lose(`the agent of node ${this.node} cannot be reached any more`);
      },
    );
  }
}
