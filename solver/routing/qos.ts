/**
 * Quality of service as a request asks for it (`x-hpcserve-qos`), or a key by default:
 *
 * ```
 * qos   = [ term *( ";" term ) [ ";" ] ]
 * term  = "quantization" ">=" bits [ "bit" ]     ; least bits a weight is kept in
 *       / "devices" "=" names                    ; cpu, gpu, mig, or catalog names: GH200, A100
 *       / "tier" "=" ( "stable" / "scavenger" )
 *       / "region" "=" names                     ; regions or sites
 *       / "wait" "=" seconds [ "s" ]             ; at most so long for a replica that is expected
 * names = name *( "," name )
 * ```
 *
 * White space between parts does not count, upper and lower case are the same.
 */
import { HpcserveError } from '../../spec/errors/error.ts';
import { nearest } from '../../spec/nearest.ts';

export interface Qos {
  quantization_bits_min?: number;
  /** In lower case, as all names here. */
  devices?: string[];
  tier?: 'stable' | 'scavenger';
  regions?: string[];
  /** Longest wait for a replica that loads or is started. Who may answer does not depend on it. */
  wait_s?: number;
}

const name_chars_max = 1024;
const names_max = 32;
const example = 'quantization>=8bit; devices=gpu,GH200; tier=stable; region=eu';

const readers: Record<string, (operator: string, value: string) => Qos> = {
  quantization: (operator, value) => {
    const match = /^(\d{1,2}(?:\.\d{1,3})?)\s*(?:bits?)?$/.exec(value);
    if (operator !== '>=' || !match || Number(match[1]) === 0)
      throw wrong(`quantization${operator}${value}`, 'it is written quantization>=8bit');
    return { quantization_bits_min: Number(match[1]) };
  },
  devices: (operator, value) => ({ devices: namesOf('devices', operator, value) }),
  tier: (operator, value) => {
    if (operator !== '=' || (value !== 'stable' && value !== 'scavenger'))
      throw wrong(`tier${operator}${value}`, 'it is written tier=stable or tier=scavenger');
    return { tier: value };
  },
  region: (operator, value) => ({ regions: namesOf('region', operator, value) }),
  wait: (operator, value) => {
    const match = /^(\d{1,6}(?:\.\d{1,3})?)\s*s?$/.exec(value);
    if (operator !== '=' || !match) throw wrong(`wait${operator}${value}`, 'it is written wait=30s');
    return { wait_s: Number(match[1]) };
  },
};

/** @throws E_REQUEST_QOS with the term that is wrong and what it should be */
export function parseQos(text: string): Qos {
  if (text.length > name_chars_max)
    throw wrong(`${text.slice(0, 40)}…`, `it has more than ${name_chars_max} characters`);
  const qos: Qos = {};
  const seen = new Set<string>();
  const terms = text.toLowerCase().split(';');
  for (const [index, term] of terms.entries()) {
    if (term.trim() === '') {
      // One at the end is no term, and nothing at all asks for nothing.
      if (index === terms.length - 1) continue;
      throw wrong(';', 'there is nothing between two semicolons');
    }
    const match = /^\s*([a-z_-]+)\s*(>=|<=|=|>|<)\s*(\S.*?)\s*$/.exec(term);
    if (!match) throw wrong(term.trim(), 'a term is a name, = or >=, and a value');
    const [, name, operator, value] = match as unknown as [string, string, string, string];
    const read = Object.hasOwn(readers, name) ? readers[name] : undefined;
    if (!read) {
      const known = Object.keys(readers);
      const close = nearest(name, known);
      throw wrong(name, close ? `did you mean ${close}?` : `the terms are ${known.join(', ')}`);
    }
    if (seen.has(name)) throw wrong(name, 'it stands there twice');
    seen.add(name);
    Object.assign(qos, read(operator, value));
  }
  return qos;
}

function namesOf(term: string, operator: string, value: string): string[] {
  const names = value.split(',').map((name) => name.trim());
  if (
    operator !== '=' ||
    names.length > names_max ||
    !names.every((name) => /^[a-z0-9][a-z0-9._-]*$/.test(name))
  )
    throw wrong(`${term}${operator}${value}`, `it is written ${term}=one or ${term}=one,two`);
  return names;
}

function wrong(what: string, because: string): HpcserveError {
  return new HpcserveError('E_REQUEST_QOS', {
    what: `"${what.slice(0, 80)}" is no term of a quality of service`,
    because,
    try: `write it like ${example}`,
    details: { param: 'x-hpcserve-qos' },
  });
}
