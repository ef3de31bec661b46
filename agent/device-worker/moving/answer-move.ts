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
 * @returns ms for which it stood still; undefined where it ended by itself meanwhile, or had nothing to bring
 * @throws HpcserveError E_KV_*: it goes on here
 */
export async function moveAnswer(
  { models, movable, source }: Surroundings,
  answer: AliveAnswer,
  peer: KvPeer,
  because: string,
): Promise<number | undefined> {
  const kv = randomBytes(16).toString('hex');
  const leaving = answer.alive.map((submission) => newLeaving(kv, submission));
  let stopped_ms = 0;
  try {
    for (const one of leaving) await sendComputed({ source, movable }, peer, one);
    stopped_ms = performance.now();
    for (const one of leaving) await stopAndSend({ source, movable }, peer, one);
  } catch (error) {
    await settle(movable, leaving, false);
    throw HpcserveError.from(error);
  }
  const moved = leaving.some(({ detached, sent }) => detached && sent > 0);
  await settle(movable, leaving, moved);
  if (!moved) return undefined;
  models.giveAway(answer.alive[0]!.id, because, { session: peer.session_id, kv });
  return performance.now() - stopped_ms;
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

type Rows = Pick<Surroundings, 'source' | 'movable'>;

/**
 * Brings what is computed of a sequence and not at a peer yet, while it goes on.
 * @returns what went; undefined: nothing did, or it does not run
 * @throws HpcserveError E_KV_*
 */
export async function sendComputed(rows: Rows, peer: KvPeer, one: Leaving): Promise<SentKv | undefined> {
  let sent: SentKv | undefined;
  // What is computed meanwhile follows later.
  for (let wanted: number | undefined; wanted === undefined || one.sent < wanted; ) {
    const before = one.sent;
    const held = await sendHeld(rows, peer, one);
    sent = added(sent, held?.sent);
    // It has ended, gave way to another, or is computed again: nothing more comes of it now.
    if (!held || one.sent === before) break;
    wanted ??= held.computed;
  }
  return sent;
}

/** What has room at once. @returns undefined: it does not run */
async function sendHeld(
  rows: Rows,
  peer: KvPeer,
  one: Leaving,
): Promise<{ computed: number; sent: SentKv | undefined } | undefined> {
  const { id, model } = one.submission;
  return rows.movable.withRoom(async (into) => {
    try {
      const asked = { do: 'hold', model, id, from: one.sent, into } as const;
      const found = (await rows.movable.ask(asked)) as HeldRows | undefined;
      return found && { computed: found.computed, sent: await sendRows(rows, peer, one, found) };
    } finally {
      await rows.movable.ask({ do: 'let_go', id });
    }
  });
}

/**
 * Stops a sequence and brings what is left of it.
 * @returns false where it has ended meanwhile
 * @throws HpcserveError E_KV_*
 */
export async function stopAndSend(
  rows: Rows,
  peer: KvPeer,
  one: Leaving,
): Promise<{ stopped: boolean; sent: SentKv | undefined }> {
  const { id, model } = one.submission;
  let sent: SentKv | undefined;
  for (let isAll = false; !isAll; )
    isAll = await rows.movable.withRoom(async (into) => {
      const asked = { do: 'detach', model, id, from: one.sent, into } as const;
      // Where it is not said how that went, it may stand still: it is settled then.
      one.detached = true;
      const found = (await rows.movable.ask(asked)) as HeldRows | undefined;
      if (!found) {
        one.detached = false;
        return true;
      }
      sent = added(sent, await sendRows(rows, peer, one, found));
      return found.placed === found.computed;
    });
  return { stopped: one.detached, sent };
}

function added(before: SentKv | undefined, more: SentKv | undefined): SentKv | undefined {
  if (!before || !more) return before ?? more;
  return {
    way: more.way,
    bytes: before.bytes + more.bytes,
    elapsed_ms: before.elapsed_ms + more.elapsed_ms,
  };
}

/** Brings what a peer does not have yet; undefined where that is nothing. @throws HpcserveError E_KV_* */
async function sendRows(
  { source, movable }: Rows,
  peer: KvPeer,
  one: Leaving,
  { tokens, placed, runs }: HeldRows,
): Promise<SentKv | undefined> {
  if (runs.length === 0) return undefined;
  const pieces = new Map(runs.map((run: PlacedRun) => [run.tokens.begin, run.pieces]));
  const { cache_scope, model } = one.submission;
  const of = { model, token_ids: Array.from(tokens.subarray(0, placed)) };
  const sent = await source.send(peer, {
    offer: {
      sequence: one.name,
      generation: 1,
      format: movable.formatOf(model),
      layers: { begin: 0, end: movable.layersOf(model) },
      tokens: { begin: one.sent, end: placed },
      runs: runs.map((run) => run.tokens),
      of: cache_scope === undefined ? of : { ...of, cache_scope },
    },
    pieces: ({ begin }) => pieces.get(begin)!,
  });
  one.sent = placed;
  return sent;
}
