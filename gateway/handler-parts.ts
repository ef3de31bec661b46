/** What relays requests, as each process of a gateway has it for itself. */
import { hostname } from 'node:os';
import { join } from 'node:path';
import { routingPolicy } from '../solver/routing/policies.ts';
import { type GatewayConfig, gatewayFiles } from '../spec/state-layout.ts';
import { limits } from '../spec/wire.ts';
import type { Availability } from './availability.ts';
import { BodyMemory } from './body-memory.ts';
import type { GatewayTimes } from './gateway-times.ts';
import type { GatewayLog } from './log.ts';
import type { Waiting } from './relay/proxy-services.ts';
import { WaitingLine } from './relay/waiting-line.ts';
import { WaitingRoom } from './relay/waiting-room.ts';
import { PromptKnowledge } from './routing/prompt-knowledge.ts';
import { Router } from './routing/router.ts';
import type { ServiceTimes } from './routing/service-times.ts';
import type { RoutingTable } from './routing/table.ts';
import type { SessionLink } from './session-link.ts';
import type { Sessions } from './sessions.ts';
import { Tracing } from './telemetry/tracing.ts';
import { PromptTracer } from './trace/prompt-tracer.ts';
import type { WorkloadMeter } from './workload/workload-meter.ts';

/** Longest expected wait where the config says nothing of it. */
const waitDefault_s = 120;

function waitMax_s({ wait_max_s = waitDefault_s }: GatewayConfig): number {
  return wait_max_s;
}

export interface RoutingParts {
  table: RoutingTable<SessionLink>;
  serviceTimes: Pick<ServiceTimes, 'of' | 'measured'>;
  workload: Pick<WorkloadMeter, 'expectedLength_tokens'>;
  availability: Availability;
  prompts: PromptKnowledge;
}

/** Who answers a request. */
export function openRouter(
  config: GatewayConfig,
  { table, serviceTimes, workload, availability, prompts }: RoutingParts,
): Router {
  return new Router({
    table,
    policy: routingPolicy(config.routing ?? 'by-engine', limits.queue_length),
    serviceTimes,
    prompts,
    wait_max_s: waitMax_s(config),
    expectedLength_tokens: (model) => workload.expectedLength_tokens(model),
    explainAbsence: (model, names) => availability.explain(model, names),
    jobComesIn_s: (model, lost_for_s) => availability.jobComesIn_s(model, lost_for_s),
  });
}

/**
 * What replicas hold of prompts, as this process knows it.
 * @param processes that relay requests in each gateway: each sees its part of them
 */
export function openPrompts(sessions: Sessions, processes = 1): PromptKnowledge {
  const prompts = new PromptKnowledge(() => processes * sessions.gateways);
  sessions.table.onEmptied((session_id) => prompts.forget(session_id));
  sessions.onBlocks = (session_id, news) => prompts.blocks(session_id, news);
  return prompts;
}

/** Traces of requests go out from where they are relayed. @param id of the gateway's session */
export function openTracing(
  config: GatewayConfig,
  { id, interval_ms, log }: { id: string; interval_ms: number; log: GatewayLog },
): Tracing | undefined {
  return Tracing.open({
    settings: config.otel ?? {},
    environment: process.env,
    resource: { 'host.name': hostname(), 'hpcserve.site': config.site, 'service.instance.id': id },
    log,
    interval_ms,
  });
}

export function openTracer({ trace, gateway_folder }: GatewayConfig): PromptTracer | undefined {
  return trace ? PromptTracer.open(join(gateway_folder, gatewayFiles.trace_salt)) : undefined;
}

/** @param places how many may wait in this process */
export function openWaiting(config: GatewayConfig, times: GatewayTimes, places: number): Waiting {
  const wait_ms = 1000 * waitMax_s(config);
  return {
    ...times,
    wake_wait_ms: wait_ms,
    held_ms: wait_ms,
    room: new WaitingRoom(places),
    line: new WaitingLine(),
  };
}

export function bodyMax_bytes({ body_bytes_max = limits.body_bytes }: GatewayConfig): number {
  return Math.min(body_bytes_max, limits.body_bytes);
}

/**
 * What bodies may take of one of so many processes. Each has its part, and room for one body as large as may be, as far
 * as its part has that.
 */
export function bodyMemory(config: GatewayConfig, processes = 1): BodyMemory {
  const { bodies_bytes_max: all_bytes_max = 1e9, bodies_key_bytes_max, body_wait_s = 5 } = config;
  const bytes_max = Math.floor(all_bytes_max / processes);
  const ofKey_bytes_max = Math.floor((bodies_key_bytes_max ?? all_bytes_max / 4) / processes);
  const largest_bytes = processes === 1 ? 0 : Math.min(bodyMax_bytes(config), bytes_max);
  return new BodyMemory({
    bytes_max,
    key_bytes_max: Math.max(ofKey_bytes_max, largest_bytes),
    wait_ms: 1000 * body_wait_s,
  });
}
