/** What the plan decided, as arguments of an engine: never beside what engine_args of model.yaml say of the same. */
import type { UnitSpec } from '../../spec/launch.ts';

/** Options that say one thing in several ways: where one of them is given, none of the others is. */
export type OptionFamily = readonly [`-${string}`, ...`-${string}`[]];

/** `--name value`, unless the person gave that option, or another of its family, in engine_args. */
export function planned(
  { model }: UnitSpec,
  [name, ...others]: OptionFamily,
  value: string | number | undefined,
): string[] {
  if (value === undefined || isGiven(model.engine_args, [name, ...others])) return [];
  return [name, String(value)];
}

/** Whether engine_args hold one of these options; engines in Python take `_` for `-`. */
export function isGiven(engine_args: readonly string[], names: readonly string[]): boolean {
  const given = new Set(
    engine_args.map((word) => word.split('=', 1)[0]!).map((word) => word.replaceAll('_', '-')),
  );
  return names.some((name) => given.has(name.replaceAll('_', '-')));
}

/** The length of sequences, where the engine is to be told; absent: it takes what the model was trained for. */
export function toldContext({ context_told, context_tokens, memory }: UnitSpec): number | undefined {
  // Launches of earlier versions say nothing of memory, and were planned with this context.
  return context_told || memory === undefined ? context_tokens : undefined;
}
