import type { DeploymentState } from '../../state/deployment-state.ts';
import type { OverAllSites } from './sites-scaler.ts';

/**
 * Whether a model that several sites have sleeps: where none of them has a replica, and until one serves again. Written
 * at each of them, since a request may come to any.
 * @returns undefined where that is written down already
 */
export function withSleep(
  state: DeploymentState,
  model: string,
  { have, claim, serving, wake_s }: OverAllSites,
  now_ms: number,
): DeploymentState | undefined {
  const before = state.scaled?.[model];
  const wasAsleep = before?.asleep_since_ms !== undefined;
  const isAsleep = serving === 0 && (wasAsleep || (have === 0 && claim === 0));
  const wakes = isAsleep && claim > 0;
  if (isAsleep === wasAsleep && wakes === (before?.waking_since_ms !== undefined)) return undefined;
  const { asleep_since_ms, waking_since_ms, ...rest } = before ?? { changed_ms: 0, wake_s };
  const next: NonNullable<DeploymentState['scaled']>[string] = rest;
  if (isAsleep) {
    next.asleep_since_ms = asleep_since_ms ?? now_ms;
    next.wake_s = wake_s;
  }
  if (wakes) next.waking_since_ms = waking_since_ms ?? now_ms;
  return { ...state, scaled: { ...state.scaled, [model]: next } };
}
