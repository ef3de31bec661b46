/** The installed engine's parsers of tool calls and reasoning, by what the plan chose and what the version has. */
import { HpcserveError } from '../../spec/errors/error.ts';
import type { UnitSpec } from '../../spec/launch.ts';
import type { EngineProbe } from './adapter.ts';

interface ParserOption {
  kind: 'tools' | 'reasoning';
  /** Names a parser. */
  option: string;
  /** Brings parsers of the user's own. */
  plugin: string;
}

const parserOptions: readonly ParserOption[] = [
  { kind: 'tools', option: '--tool-call-parser', plugin: '--tool-parser-plugin' },
  { kind: 'reasoning', option: '--reasoning-parser', plugin: '--reasoning-parser-plugin' },
];

export interface ChosenParsers {
  tools?: string;
  reasoning?: string;
  /** What the version lacks, in words for the log. */
  notices: string[];
}

/**
 * @throws HpcserveError E_AGENT_ENGINE_OPTION where model.yaml names a parser that the version does not have
 */
export function chooseParsers(unit: UnitSpec, probe: EngineProbe | undefined): ChosenParsers {
  const chosen: ChosenParsers = { notices: [] };
  for (const each of parserOptions) {
    const { kind, option } = each;
    if (names(unit, option)) continue;
    const known = kind === 'tools' ? probe?.tool_parsers : probe?.reasoning_parsers;
    const isAsked = !['auto', 'none'].includes(unit.model.parsers[kind]);
    const candidates = unit.parsers?.[kind] ?? [];
    if (isAsked && (known === undefined || known.size === 0 || names(unit, each.plugin))) {
      chosen[kind] = unit.model.parsers[kind];
      continue;
    }
    const parser = candidates.find((name) => known?.has(name));
    if (parser !== undefined) chosen[kind] = parser;
    else if (isAsked) throw lackingParser(unit, each, probe!, known!);
    else if (candidates.length > 0) chosen.notices.push(describeLack(unit, each, probe, candidates));
  }
  return chosen;
}

function names({ model }: UnitSpec, option: string): boolean {
  return model.engine_args.some((word) => word.replaceAll('_', '-').split('=', 1)[0] === option);
}

function describeLack(
  { engine, model }: UnitSpec,
  { kind }: ParserOption,
  probe: EngineProbe | undefined,
  candidates: readonly string[],
): string {
  const lost = kind === 'tools' ? 'requests with tools may be refused' : 'reasoning stays within the answer';
  const who =
    probe === undefined ? `${engine} did not say which parsers it has` : `${engine} ${probe.version}`;
  return probe === undefined
    ? `${who}: ${lost} (${model.name})`
    : `${who} has no parser ${candidates.join(' or ')}: ${lost} (${model.name})`;
}

function lackingParser(
  { engine, model }: UnitSpec,
  { kind }: ParserOption,
  { version }: EngineProbe,
  known: ReadonlySet<string>,
): HpcserveError {
  return new HpcserveError('E_AGENT_ENGINE_OPTION', {
    what: `${model.name}: ${engine} ${version} has no parser ${model.parsers[kind]} for ${kind}`,
    because: `parsers.${kind} of model.yaml names it; this version has ${[...known].join(', ')}`,
    try: `write one of them, or parsers.${kind}: none`,
  });
}
