import {
  type IncomingMessage,
  type OutgoingHttpHeaders,
  request as requestHttp,
  type ServerResponse,
} from 'node:http';
import { pipeline } from 'node:stream';
import type { AgentState, Heartbeat } from '../../spec/agent-state.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import {
  type RefactorOutcome,
  type RefactorRequest,
  refactor_ms_max,
  refactorRequestSchema,
} from '../../spec/refactor.ts';
import type { SessionRecord } from '../../spec/session-record.ts';
import { agentPaths, clientPaths, headers } from '../../spec/wire.ts';
import { answerError, answerJson } from './answers.ts';
import { salted_paths, withCacheSalt } from './cache-salt.ts';
import { connectionTo, fetchText } from './engine-request.ts';
import { proxyRequest } from './proxy.ts';
import { readWhole } from './read-whole.ts';
import { checkRemoteMedia } from './remote-media.ts';
import type { Upstream } from './serving-process.ts';
import type { BodyRules, UnitSupervisor } from './unit-supervisor.ts';

/** Where a request is one for tokens: to such something may be promised. */
const completion_paths: ReadonlySet<string> = new Set(['/v1/chat/completions', '/v1/completions']);
/** A worker answers between two iterations. */
const report_ms = 5000;

export interface SessionRequests {
  node: string;
  heartbeat_ms: number;
  /** The unit behind a session, undefined for the node agent's own. */
  unitOf(sessionId: string): UnitSupervisor | undefined;
  /** Why a peer may not ask this, if it may not. */
  refusal(peer: SessionRecord, path: string): HpcserveError | undefined;
  state(): AgentState;
  /** Gives a pipeline other stages; see `PipelineRefactorings`. */
  refactor(unit: UnitSupervisor, order: RefactorRequest, signal: AbortSignal): Promise<RefactorOutcome>;
  /** Drains one unit, or the whole node where none is given. Returns at once. */
  drain(unit: UnitSupervisor | undefined): void;
}

/** What a session answers over TLS: `spec/wire.ts` for its own paths, OpenAI's under /v1 passed on to its engine. */
export function sessionRequestHandler(agent: SessionRequests) {
  return (
    sessionId: string,
    request: IncomingMessage,
    response: ServerResponse,
    peer: SessionRecord,
  ): void => {
    const unit = agent.unitOf(sessionId);
    const path = (request.url ?? '/').split('?', 1)[0]!;
    const refusal = agent.refusal(peer, path);
    if (refusal) {
      request.resume();
      answerError(response, refusal);
    } else if (path === agentPaths.state && request.method === 'GET')
      answerJson(response, 200, agent.state());
    else if (path === agentPaths.watch && request.method === 'GET')
      watch(agent, sessionId, unit, request, response);
    else if (path === agentPaths.drain && request.method === 'POST') {
      request.resume();
      agent.drain(unit);
      answerJson(response, 202, { draining: unit?.name ?? agent.node });
    } else if (
      (path === agentPaths.device || path === agentPaths.sharing) &&
      request.method === 'GET' &&
      unit
    )
      void report(unit, path, response);
    else if (path === agentPaths.sleep && request.method === 'GET' && unit)
      answerJson(response, 200, unit.sleepReport() ?? null);
    else if (isTensorPath(path) && unit?.state().engine === 'native') passOn(unit, request, response);
    else if (path === agentPaths.kv && request.method === 'POST' && unit?.state().engine === 'native')
      passOn(unit, request, response, { [headers.peer]: peer.session_id });
    else if (path === agentPaths.refactor && request.method === 'POST' && unit)
      void refactor(agent, unit, request, response);
    else if (path === agentPaths.move && request.method === 'POST' && unit?.state().engine === 'native')
      serve(agent, sessionId, unit, request, response);
    else if (
      path === agentPaths.detokenize &&
      request.method === 'POST' &&
      unit?.detokenize_path !== undefined
    )
      serve(agent, sessionId, unit, request, response, unit.detokenize_path);
    else if (isTokenPath(path) && request.method === 'POST' && unit)
      serveTokens(agent, sessionId, unit, request, response, path);
    else if (isOpenAiPath(path) && unit) serve(agent, sessionId, unit, request, response);
    else if (isOpenAiPath(path)) {
      // On a connection from before its end: the request is not to blame, another replica may answer it.
      request.resume();
      const what = 'no model is served by this session';
      const because = 'its unit has ended, or it is the node agent’s own';
      answerError(response, new HpcserveError('E_AGENT_NOT_READY', { what, because }));
    } else {
      request.resume();
      const what = `this session does not answer ${request.method} ${path.slice(0, 200)}`;
      answerError(response, new HpcserveError('E_AGENT_REQUEST', { what }), 404);
    }
  };
}

/** Ends with the change, or where whoever asked for it goes away. */
async function refactor(
  agent: SessionRequests,
  unit: UnitSupervisor,
  request: IncomingMessage,
  response: ServerResponse,
): Promise<void> {
  const gone = new AbortController();
  response.once('close', () => gone.abort());
  try {
    const order = refactorOrder(await readWhole(request));
    const outcome = await agent.refactor(
      unit,
      order,
      AbortSignal.any([gone.signal, AbortSignal.timeout(refactor_ms_max)]),
    );
    if (!response.destroyed) answerJson(response, 200, outcome);
  } catch (error) {
    if (!response.destroyed) answerError(response, HpcserveError.from(error));
  }
}

/** @throws HpcserveError E_REFACTOR_LAYOUT */
function refactorOrder(body: Buffer): RefactorRequest {
  let json: unknown;
  try {
    json = JSON.parse(body.toString());
  } catch {
    throw new HpcserveError('E_REFACTOR_LAYOUT', {
      what: 'the stages that a pipeline is to get are no JSON',
    });
  }
  const parsed = refactorRequestSchema.safeParse(json);
  if (parsed.success) return parsed.data;
  throw new HpcserveError('E_REFACTOR_LAYOUT', {
    what: 'the stages that a pipeline is to get cannot be read',
    because: parsed.error.issues.map(({ path, message }) => `${path.join('.')}: ${message}`),
  });
}

/** What peers ask of device workers; a content's name has no dots and no slashes. */
function isTensorPath(path: string): boolean {
  if (!path.startsWith(agentPaths.tensors)) return false;
  return /^(\/[A-Za-z0-9_-]{43})?$/.test(path.slice(agentPaths.tensors.length));
}

/** To the unit's worker and back, as it is: what device workers of other nodes ask for is no client's request. */
function passOn(
  unit: UnitSupervisor,
  request: IncomingMessage,
  response: ServerResponse,
  said: OutgoingHttpHeaders = {},
): void {
  const { upstream } = unit;
  if (upstream?.kind !== 'socket') {
    request.resume();
    answerError(
      response,
      new HpcserveError('E_AGENT_NOT_READY', { what: `${unit.name} has no device worker now` }),
    );
    return;
  }
  const { method, url } = request;
  const type = request.headers['content-type'];
  const passed: OutgoingHttpHeaders = { host: 'worker', ...said };
  if (type !== undefined) passed['content-type'] = type;
  const asked = requestHttp({ ...connectionTo(upstream), method, path: url, headers: passed });
  asked.on('response', (answer) => {
    const named = (['content-type', 'content-length'] as const).flatMap((name) => {
      const value = answer.headers[name];
      return value === undefined ? [] : [[name, value] as const];
    });
    response.writeHead(answer.statusCode ?? 502, Object.fromEntries(named));
    // Either end that goes takes the other with it: what came of it is not whole, and is not taken for it.
    pipeline(answer, response, () => undefined);
  });
  asked.on('error', () => response.destroy());
  response.on('close', () => asked.destroy());
  request.pipe(asked);
}

function isTokenPath(path: string): boolean {
  return path === clientPaths.tokenize || path === clientPaths.detokenize;
}

/** A model's tokens, by engines that tell them in vLLM's way. */
function serveTokens(
  agent: SessionRequests,
  sessionId: string,
  unit: UnitSupervisor,
  request: IncomingMessage,
  response: ServerResponse,
  path: string,
): void {
  const enginePath = path === clientPaths.tokenize ? unit.tokenize_path : unit.detokenize_path;
  if (enginePath !== undefined) {
    serve(agent, sessionId, unit, request, response, enginePath);
    return;
  }
  request.resume();
  const { engine } = unit.state();
  const what = `${path} is not supported: ${engine} tells no tokens in the way of vLLM`;
  const because = 'the native engine, vLLM and SGLang do; elsewhere use the tokenizer of the model itself';
  answerError(response, new HpcserveError('E_REQUEST_UNSUPPORTED', { what, because }));
}

/** Below /v1 whatever the engine makes of dots: what else it has is not for peers. */
function isOpenAiPath(path: string): boolean {
  const segments = path.split(/\/|\\|%2f|%5c/i);
  return path.startsWith('/v1/') && !segments.some((segment) => /^(\.|%2e){1,2}$/i.test(segment));
}

/** @param enginePath where its engine is asked; absent: at the path of the request */
function serve(
  agent: SessionRequests,
  sessionId: string,
  unit: UnitSupervisor,
  request: IncomingMessage,
  response: ServerResponse,
  enginePath?: string,
): void {
  // Names may hold any character, header fields may not: gateways encode them as in a URI.
  const name = request.headers[headers.model];
  const model =
    name === undefined ? unit.models[0] : unit.models.find((candidate) => encodeURI(candidate.name) === name);
  const answer_headers: OutgoingHttpHeaders = {
    [headers.node]: agent.node,
    [headers.engine]: unit.state().engine,
    [headers.session]: sessionId,
  };
  if (model !== undefined) answer_headers[headers.precision] = model.precision;
  const { upstream } = unit;
  if (unit.draining || !upstream || model?.state !== 'serving') {
    request.resume();
    const state = unit.draining ? 'draining' : (model?.state ?? 'not one of its models');
    const what = `${String(name ?? unit.name)} is not served by this session now`;
    const error = new HpcserveError('E_AGENT_NOT_READY', { what, because: `it is ${state}` });
    answerError(response, error, undefined, answer_headers);
    return;
  }
  // From here on it counts: an engine is put to sleep only where none is in.
  const onEnd = unit.enter();
  const pass = (body?: Buffer): void =>
    proxyRequest({
      body,
      path: enginePath,
      incoming: request,
      outgoing: response,
      upstream,
      answer_headers,
      deadlines: unit.deadlines(model.name),
      traffic: unit.traffic,
      times: isCompletion(request) ? unit.traffic.times : undefined,
      onSessionEnd: (callback) => unit.onSessionEnd(callback),
      onHandOver: (callback) => unit.onHandOver(callback),
      onEnd,
    });
  const rules = request.method === 'POST' ? unit.bodyRules(model.name) : undefined;
  const waking = unit.wake(isCertain(request));
  if (waking === undefined && rules === undefined) {
    pass();
    return;
  }
  // Counted out and waiting no more at once: an engine sleeps where as many wait for it as are in.
  const leave = (): void => {
    waking?.withdraw();
    onEnd();
  };
  response.once('close', leave);
  const read = async (): Promise<Buffer | undefined> =>
    rules && checkedBody(await readWhole(request), request, rules, upstream);
  Promise.all([read(), waking?.awake]).then(
    ([body]) => (response.destroyed ? leave() : pass(body)),
    (error: unknown) => {
      leave();
      // A client that went away while it sent its request is told nothing.
      if (response.destroyed) return;
      request.resume();
      const said = HpcserveError.from(error);
      answerError(response, said, statusOf(error), { ...answer_headers, ...retryAfter(said) });
    },
  );
}

/** Whether it is let in whatever was promised: nothing is promised to it, or another replica began its answer. */
function isCertain(request: IncomingMessage): boolean {
  return !isCompletion(request) || request.headers[headers.continues] !== undefined;
}

function isCompletion({ method, url }: IncomingMessage): boolean {
  return method === 'POST' && completion_paths.has((url ?? '/').split('?', 1)[0]!);
}

function retryAfter({ details }: HpcserveError): OutgoingHttpHeaders {
  const { retry_after_s } = details;
  return typeof retry_after_s === 'number' ? { 'retry-after': String(retry_after_s) } : {};
}

/** What a wrapped engine gets in place of a body. @throws HpcserveError where it must not get it at all */
function checkedBody(
  body: Buffer,
  request: IncomingMessage,
  { media_domains, takes_cache_salt }: BodyRules,
  { key }: Upstream,
): Buffer {
  checkRemoteMedia(body, media_domains);
  const scope = request.headers[headers.cache_scope];
  const path = (request.url ?? '/').split('?', 1)[0]!;
  if (!takes_cache_salt || typeof scope !== 'string' || !salted_paths.has(path)) return body;
  return withCacheSalt(body, scope, key ?? '');
}

function statusOf(error: unknown): number | undefined {
  return error instanceof HpcserveError && error.code === 'E_AGENT_REQUEST' ? 413 : undefined;
}

/** What a device worker says of itself, as it came. */
async function report(unit: UnitSupervisor, path: string, response: ServerResponse): Promise<void> {
  const { upstream } = unit;
  try {
    if (upstream?.kind !== 'socket') throw new Error('no device worker runs for it now');
    const { status, text } = await fetchText(upstream, path, report_ms);
    if (status !== 200) throw new Error(`its worker answers ${status}`);
    const { because } = unit.energy;
    const energy = because === undefined ? unit.energy.read() : { because };
    answerJson(
      response,
      200,
      path === agentPaths.device ? { ...JSON.parse(text), energy } : JSON.parse(text),
    );
  } catch (error) {
    const what = `${unit.name} gives no report`;
    answerError(
      response,
      new HpcserveError('E_AGENT_NOT_READY', { what, because: (error as Error).message }),
    );
  }
}

/** One JSON line each interval; the stream's end says that the session is gone. */
function watch(
  agent: SessionRequests,
  sessionId: string,
  unit: UnitSupervisor | undefined,
  request: IncomingMessage,
  response: ServerResponse,
): void {
  response.writeHead(200, { 'content-type': 'application/x-ndjson', 'cache-control': 'no-store' });
  let sequence = 0;
  const blocks = unit?.blockReader();
  const beat = (): void => {
    // A watcher that does not read gets the newest when it does, not a queue of old ones.
    if (response.writableNeedDrain) return;
    const heartbeat: Heartbeat = {
      session_id: sessionId,
      sequence: sequence++,
      at_ms: Date.now(),
      energy: unit?.energy.read(),
      models: unit?.loads() ?? [],
      kv_blocks: blocks?.next(),
    };
    response.write(`${JSON.stringify(heartbeat)}\n`);
  };
  beat();
  const timer = setInterval(beat, agent.heartbeat_ms);
  const unwatch = unit?.onFullness(beat);
  const quiet = (): void => {
    clearInterval(timer);
    unwatch?.();
  };
  const forget = unit?.onSessionEnd(() => {
    // The connection may take a while to close, and a beat after the end would be an error.
    quiet();
    response.end();
  });
  // An answer that waits behind another one of its connection is told nothing when that is gone.
  request.socket.once('close', () => {
    quiet();
    forget?.();
  });
}
