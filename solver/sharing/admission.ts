/**
 * Whether a device takes a request: shadow validation of its compute, and a shadow check of its memory (LLM-Mesh §4,
 * §6.4). Pure; the device worker calls it with its own state and has the last word.
 */
import {
  type DeviceView,
  type InstanceView,
  type ModelOnDevice,
  type RequestView,
  standing_bytes,
} from './device-view.ts';
import { type KvRequirement, kvDemand, raiseTo } from './kv-budget.ts';
import { addPrompt, advance, estimateDecode, type Lane, laneOf, waitingPrompt } from './lanes.ts';
import type { SharingSettings } from './settings.ts';
import { type Violation, validate } from './shadow-validation.ts';

/** What other instances of the device must give up first. */
export type Release =
  | { instance: string; kv_to_bytes: number }
  /** It has no requests: it goes before its keep-alive is over. */
  | { instance: string; recycle: true };

export interface Admitted {
  admit: true;
  /** KV budget of the instance from now on. */
  kv_bytes: number;
  /** Only M_require fits, not M_recommend (§6.4). */
  compromise: boolean;
  releases: Release[];
  because: string;
}

export interface Refused {
  admit: false;
  limit: 'compute' | 'memory' | 'instances';
  violation?: Violation;
  because: string;
}

export type AdmissionVerdict = Admitted | Refused;

/** Limits that are not looked at: what would happen if this one were lifted? */
export interface Ignored {
  memory?: boolean;
}

/** A request to an instance that stands. */
export function admitTo(
  device: DeviceView,
  instance: InstanceView,
  request: RequestView,
  now_ms: number,
  settings: SharingSettings,
  ignored: Ignored = {},
): AdmissionVerdict {
  if (instance.places !== undefined && instance.places <= 0)
    return refuse('instances', 'all places of its batch are taken');
  const demand = kvDemand(instance, settings, request);
  const bytes_max = instance.kv_bytes_max ?? Number.POSITIVE_INFINITY;
  if (demand.required_bytes > bytes_max && !ignored.memory)
    return refuse('memory', beyond(instance, demand, bytes_max));
  const memory = ignored.memory
    ? { kv_bytes: demand.required_bytes, compromise: false, releases: [] }
    : room(device, instance.kv_bytes, demand, 0, settings, instance.id);
  if (!('releases' in memory)) return refuse('memory', memory.because);
  const lanes = lanesNow(device, now_ms, settings, memory.releases);
  const lane = lanes.find((candidate) => candidate.instance === instance.id)!;
  addPrompt(lane, waitingPrompt(request, now_ms));
  const verdict = validate(lanes, request.id, deviceFree_ms(device, now_ms), settings);
  if (!verdict.ok) return refuse('compute', verdict.because, verdict.violation);
  const batch = instance.requests.length + 1;
  return {
    admit: true,
    ...memory,
    because: `${instance.id} takes it as ${ordinal(batch)} of its batch${describe(memory.compromise)}`,
  };
}

function beyond(
  { kv_bytes_per_token }: Pick<InstanceView, 'kv_bytes_per_token'>,
  { required_bytes }: KvRequirement,
  bytes_max: number,
): string {
  const tokens = (bytes: number): number => Math.round(bytes / kv_bytes_per_token);
  return `its requests are expected to need KV for ${tokens(required_bytes)} tokens, and it has room for ${tokens(bytes_max)}`;
}

/** A request to an instance that is to be made for it. */
export function admitNew(
  device: DeviceView,
  model: ModelOnDevice,
  request: RequestView,
  now_ms: number,
  settings: SharingSettings,
): AdmissionVerdict {
  if (device.instances_max !== undefined && device.instances.length >= device.instances_max)
    return refuse(
      'instances',
      `${device.id} runs ${device.instances.length} of ${device.instances_max} instances`,
    );
  const demand = kvDemand({ ...model, requests: [] }, settings, request);
  const bytes_max = model.kv_bytes_max ?? Number.POSITIVE_INFINITY;
  if (demand.required_bytes > bytes_max) return refuse('memory', beyond(model, demand, bytes_max));
  const memory = room(device, 0, demand, standing_bytes(model), settings);
  if (!('releases' in memory)) return refuse('memory', memory.because);
  const lanes = lanesNow(device, now_ms, settings, memory.releases);
  const instance: InstanceView = {
    id: `${model.model} on ${device.id}`,
    model: model.model,
    profile: model.profile,
    ready_at_ms: settings.cold_start_counts ? now_ms + loadTime(device, model, memory.kv_bytes) : now_ms,
    weight_bytes: model.weight_bytes,
    working_bytes: model.working_bytes,
    kv_bytes: memory.kv_bytes,
    kv_bytes_per_token: model.kv_bytes_per_token,
    prefill_chunk_tokens_max: model.prefill_chunk_tokens_max,
    requests: [request],
  };
  lanes.push(laneOf(instance, now_ms, settings));
  const verdict = validate(lanes, request.id, deviceFree_ms(device, now_ms), settings);
  if (!verdict.ok) return refuse('compute', verdict.because, verdict.violation);
  return {
    admit: true,
    ...memory,
    because: `${device.id} (${device.compute}) loads ${model.model} for it in ${Math.round(loadTime(device, model, memory.kv_bytes))} ms${describe(memory.compromise)}`,
  };
}

/** From the order until weights are there; what others still have to give up comes first. */
export function loadTime(device: DeviceView, model: ModelOnDevice, kv_bytes: number): number {
  const waits = device.held_bytes + standing_bytes(model) + kv_bytes > device.pool_bytes;
  return model.load_ms + (waits ? device.release_ms : 0);
}

/** The device's lanes as they will stand when the iteration that runs now is over. */
export function lanesNow(
  device: DeviceView,
  now_ms: number,
  settings: SharingSettings,
  releases: readonly Release[] = [],
): Lane[] {
  const lanes: Lane[] = [];
  for (const instance of device.instances) {
    if (releases.some((release) => 'recycle' in release && release.instance === instance.id)) continue;
    const lane = laneOf(instance, now_ms, settings);
    const { running } = device;
    if (running?.instance === instance.id) {
      const prompt = lane.prompts.find(({ request }) => request === running.request);
      // A request that was taken away while its iteration ran has no prompt here any more.
      if (running.request === undefined ? lane.batch > 0 : prompt !== undefined)
        advance(lane, prompt, running.tokens, running.ends_ms, settings);
      else estimateDecode(lane, settings);
    }
    lanes.push(lane);
  }
  return lanes;
}

/** When the device is free for its next iteration. */
export function deviceFree_ms(device: DeviceView, now_ms: number): number {
  return Math.max(now_ms, device.running?.ends_ms ?? now_ms);
}

export type Room = { kv_bytes: number; compromise: boolean; releases: Release[] } | { because: string };

/** Room for what an instance's requests need, as far as it may have that: nothing is asked of its time. */
export function roomFor(device: DeviceView, instance: InstanceView, settings: SharingSettings): Room {
  const { required_bytes, recommended_bytes } = kvDemand(instance, settings);
  const bytes_max = instance.kv_bytes_max ?? Number.POSITIVE_INFINITY;
  const demand = {
    required_bytes: Math.min(required_bytes, bytes_max),
    recommended_bytes: Math.min(recommended_bytes, bytes_max),
  };
  return room(device, instance.kv_bytes, demand, 0, settings, instance.id);
}

/**
 * M_recommend where it fits, M_require where only that fits; else neighbours without requests go, and neighbours'
 * budgets shrink, first to what is recommended for them, then to what they require: what is held beyond that is
 * comfort.
 */
function room(
  device: DeviceView,
  kv_bytes: number,
  demand: KvRequirement,
  beside_bytes: number,
  settings: SharingSettings,
  own?: string,
): Room {
  const free_bytes = device.pool_bytes - device.budget_bytes - beside_bytes;
  const wanted_bytes = raiseTo(kv_bytes, demand);
  if (wanted_bytes - kv_bytes <= free_bytes)
    return { kv_bytes: wanted_bytes, compromise: false, releases: [] };
  const releases: Release[] = [];
  let short_bytes = demand.required_bytes - kv_bytes - free_bytes;
  if (short_bytes > 0) {
    const neighbours = device.instances.filter((other) => other.id !== own && givesKv(other));
    for (const idle of neighbours.filter(({ requests }) => requests.length === 0)) {
      if (short_bytes <= 0) break;
      releases.push(
        idle.stays ? { instance: idle.id, kv_to_bytes: 0 } : { instance: idle.id, recycle: true },
      );
      short_bytes -= (idle.stays ? 0 : standing_bytes(idle)) + idle.kv_bytes;
    }
    const busy = neighbours
      .filter(({ requests }) => requests.length > 0)
      .map((instance) => ({
        instance,
        demand: kvDemand(instance, settings),
      }));
    for (const floor of ['recommended_bytes', 'required_bytes'] as const)
      for (const { instance, demand: theirs } of busy) {
        if (short_bytes <= 0) break;
        const before = releases.findIndex((release) => release.instance === instance.id);
        const held = before < 0 ? instance.kv_bytes : theirs.recommended_bytes;
        if (held <= theirs[floor]) continue;
        if (before >= 0) releases.splice(before, 1);
        releases.push({ instance: instance.id, kv_to_bytes: theirs[floor] });
        short_bytes -= held - theirs[floor];
      }
  }
  if (short_bytes > 0)
    return {
      because: `${size(demand.required_bytes + beside_bytes - kv_bytes)} more are required, ${size(short_bytes)} more than ${device.id} can give`,
    };
  return { kv_bytes: Math.max(kv_bytes, demand.required_bytes), compromise: true, releases };
}

/** What is taken as a whole goes as a whole, with its instance. */
function givesKv({ kv_whole, requests, stays }: InstanceView): boolean {
  return !kv_whole || (requests.length === 0 && !stays);
}

function refuse(limit: Refused['limit'], because: string, violation?: Violation): Refused {
  return { admit: false, limit, violation, because };
}

/**
 * When a refusal might turn out otherwise, in milliseconds: until the first of the device's requests is expected to end
 * (tokens left times a round of steps), and what loads is ready.
 */
export function retryAfter(device: DeviceView, now_ms: number, settings: SharingSettings): number {
  let round_ms = 0;
  let tokens = Number.POSITIVE_INFINITY;
  let ready_ms = 0;
  for (const instance of device.instances) {
    round_ms += laneOf(instance, now_ms, settings).decode_ms;
    ready_ms = Math.max(ready_ms, instance.ready_at_ms - now_ms);
    for (const { expected_output_tokens, output_tokens } of instance.requests)
      tokens = Math.min(tokens, Math.max(1, expected_output_tokens - output_tokens));
  }
  return tokens === Number.POSITIVE_INFINITY ? ready_ms : Math.max(ready_ms, Math.ceil(tokens * round_ms));
}

function describe(compromise: boolean): string {
  return compromise ? ', with the KV it requires and no watermark' : '';
}

function ordinal(count: number): string {
  const tail = count % 100 >= 11 && count % 100 <= 13 ? 'th' : (['th', 'st', 'nd', 'rd'][count % 10] ?? 'th');
  return `${count}${tail}`;
}

function size(bytes: number): string {
  return bytes < 2 ** 30 ? `${Math.ceil(bytes / 2 ** 20)} MiB` : `${(bytes / 2 ** 30).toFixed(1)} GiB`;
}
