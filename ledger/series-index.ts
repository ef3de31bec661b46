import type { RequestRecord, SessionFacts } from './record.ts';

/** What requests have in common with many others; see the table `series`. */
export type SeriesMembers = Pick<
  RequestRecord,
  | 'session'
  | 'key_id'
  | 'limits_key_id'
  | 'user'
  | 'project'
  | 'endpoint'
  | 'model'
  | 'served_model'
  | 'precision'
>;

interface KnownSeries {
  readonly of: SeriesMembers;
  readonly number: number;
}

/**
 * Numbers of series. Found by session and key, which few series have in common; all else is compared, so that no string
 * is made to look one up.
 */
export class SeriesIndex {
  readonly #known = new Map<SessionFacts | undefined, Map<string, KnownSeries[]>>();
  #size = 0;

  get size(): number {
    return this.#size;
  }

  find(of: SeriesMembers): number | undefined {
    const known = this.#known.get(of.session)?.get(of.key_id);
    if (known) for (const one of known) if (isSame(one.of, of)) return one.number;
    return undefined;
  }

  /** One that is not there. */
  add(record: SeriesMembers, number: number): SeriesMembers {
    const { session, key_id, limits_key_id, user, project, endpoint, model, served_model, precision } =
      record;
    const of = { session, key_id, limits_key_id, user, project, endpoint, model, served_model, precision };
    const byKey = this.#known.get(session) ?? new Map<string, KnownSeries[]>();
    this.#known.set(session, byKey);
    byKey.set(key_id, [...(byKey.get(key_id) ?? []), { of, number }]);
    this.#size++;
    return of;
  }

  remove(of: SeriesMembers): void {
    const byKey = this.#known.get(of.session)!;
    byKey.set(
      of.key_id,
      byKey.get(of.key_id)!.filter((one) => one.of !== of),
    );
    this.#size--;
  }

  clear(): void {
    this.#known.clear();
    this.#size = 0;
  }
}

/** Of the same session and key. A model that no session serves is a client's own name for it, of its request alone. */
function isSame(one: SeriesMembers, other: SeriesMembers): boolean {
  return (
    one.user === other.user &&
    one.project === other.project &&
    one.endpoint === other.endpoint &&
    (one.model === other.model || !one.session) &&
    one.served_model === other.served_model &&
    one.precision === other.precision &&
    one.limits_key_id === other.limits_key_id
  );
}
