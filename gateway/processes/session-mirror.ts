import type { Registry, RegistryChange } from '../../mesh/index.ts';
import type { SessionRecord } from '../../spec/session-record.ts';
import type { SessionChange } from './messages.ts';

/** The sessions of the mesh as the primary knows them, which alone is a member: what a worker goes by. */
export class SessionMirror implements Pick<Registry, 'snapshot' | 'onChange'> {
  readonly #records = new Map<string, SessionRecord>();
  readonly #listeners = new Set<(changes: RegistryChange[]) => void>();

  snapshot(): SessionRecord[] {
    return [...this.#records.values()];
  }

  onChange(callback: (changes: RegistryChange[]) => void): () => void {
    this.#listeners.add(callback);
    return () => this.#listeners.delete(callback);
  }

  /** Takes what changed at the primary. */
  apply(changed: readonly SessionChange[]): void {
    const changes = changed.map(([session_id, record]) => {
      const change: RegistryChange = { session_id };
      const before = this.#records.get(session_id);
      if (before) change.before = before;
      if (record) {
        change.after = record;
        this.#records.set(session_id, record);
      } else this.#records.delete(session_id);
      return change;
    });
    for (const listener of this.#listeners) listener(changes);
  }
}
