import type { LocalSession } from '../../mesh/index.ts';
import type { SessionMetadata, SessionModel } from '../../spec/session-record.ts';
import type { AgentLog } from './log.ts';

/** Least time between two records that differ only in progress of loading, ms. */
const progress_pause_ms = 1000;

/** What a unit's session is to say by now. */
export interface UnitNews {
  session: LocalSession | undefined;
  models: readonly SessionModel[];
  engine_version: string | undefined;
  draining: boolean;
}

/** Has others know of the models of a session: changes of state at once, progress of loading now and then. */
export class SessionNews {
  readonly #facts: () => UnitNews;
  readonly #log: AgentLog;
  #told = '';
  #told_ms = Number.NEGATIVE_INFINITY;
  #timer: NodeJS.Timeout | undefined;

  constructor(facts: () => UnitNews, log: AgentLog) {
    this.#facts = facts;
    this.#log = log;
  }

  tell(): void {
    const told = JSON.stringify(
      this.#facts().models.map((model) => [model.name, model.state, model.phase, model.error]),
    );
    const pause_ms = told === this.#told ? this.#told_ms + progress_pause_ms - performance.now() : 0;
    this.#told = told;
    if (pause_ms <= 0) this.#publish();
    else this.#timer ??= setTimeout(() => this.#publish(), pause_ms);
  }

  /** What waits to be told is told by the caller. */
  cancel(): void {
    clearTimeout(this.#timer);
    this.#timer = undefined;
  }

  #publish(): void {
    this.cancel();
    this.#told_ms = performance.now();
    const { session, draining, ...facts } = this.#facts();
    if (!session || session.record.lifecycle === 'LEFT') return;
    const serving = facts.models.some((model) => model.state === 'serving');
    const begin = session.record.lifecycle === 'JOIN' && serving && !draining;
    const known = session.record.metadata;
    const models = facts.models.map((model) => ({ ...model }));
    const engine_version = facts.engine_version ?? known.engine_version;
    const told = JSON.stringify([models, engine_version]);
    // A record of a new version that says nothing new is work for the whole mesh, and a sign of life.
    if (!begin && told === JSON.stringify([known.models, known.engine_version])) return;
    const metadata: Partial<SessionMetadata> = { models };
    if (engine_version !== undefined) metadata.engine_version = engine_version;
    session
      .update(begin ? { lifecycle: 'SERVING', metadata } : { metadata })
      .catch((error: unknown) => this.#log.error(error));
  }
}
