/** Who may do what with the sessions of a launch: a decision about a peer whose key was proved, and one request. */
import { HpcserveError } from '../../spec/errors/error.ts';
import { describeProvider, provenProviderOf, type SessionRecord } from '../../spec/session-record.ts';
import { agentPaths } from '../../spec/wire.ts';

/**
 * `use`: have something computed, or read weights; `operate`: change what it does, or see what it does for others;
 * `exchange`: bring it answers that have begun elsewhere, with their prompts and keys and values.
 */
type Right = 'use' | 'operate' | 'exchange';

const operating: ReadonlySet<string> = new Set([
  agentPaths.state,
  agentPaths.drain,
  agentPaths.device,
  agentPaths.sleep,
  agentPaths.sharing,
  agentPaths.move,
  agentPaths.refactor,
]);

export interface AccessRules {
  /** Fingerprint of the provider of these sessions; undefined while nothing proves it. */
  own: string | undefined;
  /** Fingerprints of who may use them; undefined: every member of the mesh. */
  users: readonly string[] | undefined;
  /** Fingerprints of whose gateways may operate them, beside the own provider's. */
  operators: readonly string[] | undefined;
}

/** @returns undefined where the peer may ask this, else E_AGENT_ACCESS */
export function accessRefusal(
  rules: AccessRules,
  peer: SessionRecord,
  path: string,
  now_ms: number,
): HpcserveError | undefined {
  const right: Right = path === agentPaths.kv ? 'exchange' : operating.has(path) ? 'operate' : 'use';
  const provider = provenProviderOf(peer, now_ms);
  if (mayDo[right](rules, peer, provider)) return undefined;
  const who = `${peer.metadata.role} on ${peer.metadata.node}`;
  const whose = describeProvider(peer.metadata.provider, provider);
  const details: Record<string, unknown> = { right };
  if (provider !== undefined) details.provider = provider;
  return new HpcserveError('E_AGENT_ACCESS', {
    what: `the ${who} of ${whose} may not ${right} this session`,
    because: because(rules, peer, right, provider),
    details,
  });
}

type Decision = (rules: AccessRules, peer: SessionRecord, provider: string | undefined) => boolean;

const mayDo: Record<Right, Decision> = { use: mayUse, operate: mayOperate, exchange: mayExchange };

function mayUse(
  { own, users, operators }: AccessRules,
  _peer: SessionRecord,
  provider: string | undefined,
): boolean {
  if (users === undefined) return true;
  return provider !== undefined && [own, ...users, ...(operators ?? [])].includes(provider);
}

/** Gateways alone: a job that is taken over by somebody is not to end the others of its provider. */
function mayOperate(
  { own, operators }: AccessRules,
  peer: SessionRecord,
  provider: string | undefined,
): boolean {
  if (provider === undefined || peer.metadata.role !== 'gateway') return false;
  return [own, ...(operators ?? [])].includes(provider);
}

/** Agents of the same provider alone: whoever may do it says what others' prompts go on with. */
function mayExchange({ own }: AccessRules, peer: SessionRecord, provider: string | undefined): boolean {
  return provider !== undefined && provider === own && peer.metadata.role === 'node-agent';
}

function because(
  { own }: AccessRules,
  { metadata: { role } }: SessionRecord,
  right: Right,
  provider: string | undefined,
): string {
  if (provider === undefined) return 'it proves no provider, or what it proves is over';
  if (right === 'operate' && role !== 'gateway') return 'only gateways operate sessions';
  if (right === 'exchange' && role !== 'node-agent') return 'only node agents bring answers that have begun';
  const whose = own === undefined ? 'nothing proves yet who provides it' : `it belongs to provider ${own}`;
  return `${whose}, which does not list ${provider}`;
}
