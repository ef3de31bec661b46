import { randomBytes } from 'node:crypto';
import { HpcserveError } from '../../../spec/errors/error.ts';
import type { KvPeer, KvSource, SentKv } from '../../transfer/kv-source.ts';
import type { HeldRows, PlacedRun } from '../compute/kv-messages.ts';
import type { Submission } from '../compute/messages.ts';
import type { Models } from '../models.ts';
import { arrivalName } from './arrival-name.ts';
import type { AliveAnswer } from './leaving-answers.ts';
import type { MovableModels } from './movable-models.ts';

/** The rows of one choice on their way. */
export interface Leaving {
  submission: Submission;
  /** What it is called at the target. */
  name: string;
  /** Tokens whose rows are there. */
  sent: number;
  detached: boolean;
}

export interface Surroundings {
  models: Models;
  movable: MovableModels;
  source: KvSource;
}

/**
 * Moves one answer to a peer, with keys and values. While it decodes on, what is computed of it is copied; then it
 * stops, the rows that were added meanwhile follow, and its client is told where it goes on. Where anything fails, it
 * goes on here.
 *
 *     hold ─► copy ─► let go      for each of its sequences, while it decodes
 *     detach ─► copy the rest     for each of them: it stands still
 *     settle, tell the gateway    it is the peer's
 *
 * @returns false where it ended by itself meanwhile, or had nothing to bring
 * @throws HpcserveError E_KV_*: it goes on here
 */
export async function moveAnswer(
  { models, movable, source }: Surroundings,
  answer: AliveAnswer,
  peer: KvPeer,
  because: string,
): Promise<boolean> {
  const kv = randomBytes(16).toString('hex');
  const leaving = answer.alive.map((submission) => newLeaving(kv, submission));
  const send = (one: Leaving, rows: HeldRows): Promise<unknown> =>
    sendRows({ source, movable }, peer, one, rows);
  try {
    for (const one of leaving) {
      const { id, model } = one.submission;
      const rows = (await movable.ask({ do: 'hold', model, id })) as HeldRows | undefined;
      try {
        if (rows) await send(one, rows);
      } finally {
        await movable.ask({ do: 'let_go', id });
      }
    }
    for (const one of leaving) {
      const { id, model } = one.submission;
      const rows = (await movable.ask({ do: 'detach', model, id, from: one.sent })) as HeldRows | undefined;
      if (!rows) continue;
      one.detached = true;
      await send(one, rows);
    }
  } catch (error) {
    await settle(movable, leaving, false);
    throw HpcserveError.from(error);
  }
  const moved = leaving.some(({ detached, sent }) => detached && sent > 0);
  await settle(movable, leaving, moved);
  if (moved) models.giveAway(answer.alive[0]!.id, because, { session: peer.session_id, kv });
  return moved;
}

/** What was stopped goes on here, or is given up: it has moved. */
export async function settle(
  movable: MovableModels,
  leaving: readonly Leaving[],
  moved: boolean,
): Promise<void> {
  for (const { submission, detached } of leaving)
    if (detached) await movable.ask({ do: 'settle', id: submission.id, moved });
}

/** @param kv what the answer's rows are called where they go */
export function newLeaving(kv: string, submission: Submission): Leaving {
  return { submission, name: arrivalName(kv, submission.choice), sent: 0, detached: false };
}

/** Brings what a peer does not have yet; undefined where that is nothing. @throws HpcserveError E_KV_* */
export async function sendRows(
  { source, movable }: Pick<Surroundings, 'source' | 'movable'>,
  peer: KvPeer,
  one: Leaving,
  { tokens, computed, runs }: HeldRows,
): Promise<SentKv | undefined> {
  if (runs.length === 0) return undefined;
  const pieces = new Map(runs.map((run: PlacedRun) => [run.tokens.begin, run.pieces]));
  const { cache_scope, model } = one.submission;
  const of = { model, token_ids: Array.from(tokens.subarray(0, computed)) };
  const sent = await source.send(peer, {
    offer: {
      sequence: one.name,
      generation: 1,
      format: movable.formatOf(model),
      layers: { begin: 0, end: movable.layersOf(model) },
      tokens: { begin: one.sent, end: computed },
      runs: runs.map((run) => run.tokens),
      of: cache_scope === undefined ? of : { ...of, cache_scope },
    },
    pieces: ({ begin }) => pieces.get(begin)!,
  });
  one.sent = computed;
  return sent;
}
