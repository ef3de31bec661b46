/** The device as the schedule sees it, for those who place requests on several: times counted from now. */
import type {
  DeviceView,
  InstanceView,
  ModelOnDevice,
  RequestView,
} from '../../../solver/sharing/device-view.ts';
import type { KeptProfile } from '../../../solver/sharing/growing-profile.ts';
import type { SharingSettings } from '../../../solver/sharing/settings.ts';
import type { SharedDeviceView } from '../../../spec/device-view.ts';

/** What of a live instance is told. */
interface TellableInstance extends InstanceView {
  growing: { kept(): KeptProfile };
  tokens_max: number;
  kv_bytes_max: number;
  prefill_chunk_tokens_max: number;
  places: number;
  readonly live: ReadonlyMap<number, { movable: boolean }>;
}

/** A model that has no instance now, as one would run. */
type TellableModel = ModelOnDevice &
  Pick<TellableInstance, 'growing' | 'tokens_max' | 'kv_bytes_max' | 'prefill_chunk_tokens_max'>;

/** @param resting models of the device that have no instance now */
export function sharedView(
  device: Omit<DeviceView, 'instances'> & { instances: readonly TellableInstance[] },
  settings: SharingSettings,
  now_ms: number,
  resting: readonly TellableModel[],
): SharedDeviceView {
  const { pool_bytes, budget_bytes, held_bytes, instances } = device;
  /** Nobody else gains by its going. */
  const alone = instances.length + resting.length < 2;
  return {
    format: 1,
    // Before the first model there is no pool.
    pool_bytes: Number.isFinite(pool_bytes) ? pool_bytes : 0,
    budget_bytes,
    held_bytes,
    settings: { ...settings },
    instances: instances.map((instance) => ({
      model: instance.model,
      profile: instance.growing.kept(),
      ready_at_ms: instance.ready_at_ms - now_ms,
      weight_bytes: instance.weight_bytes,
      working_bytes: instance.working_bytes,
      kv_whole: instance.kv_whole,
      kv_bytes: instance.kv_bytes,
      kv_bytes_max: instance.kv_bytes_max,
      kv_bytes_per_token: instance.kv_bytes_per_token,
      tokens_max: instance.tokens_max,
      places: instance.places,
      fixed: alone || instance.live.size === 0 || [...instance.live.values()].some(({ movable }) => !movable),
      prefill_chunk_tokens_max: instance.prefill_chunk_tokens_max,
      requests: instance.requests.map((request) => fromNow(request, now_ms)),
    })),
    resting: resting.map((model) => ({
      model: model.model,
      profile: model.growing.kept(),
      weight_bytes: model.weight_bytes,
      working_bytes: model.working_bytes,
      kv_bytes_per_token: model.kv_bytes_per_token,
      kv_bytes_max: model.kv_bytes_max,
      tokens_max: model.tokens_max,
      prefill_chunk_tokens_max: model.prefill_chunk_tokens_max,
      load_ms: model.load_ms,
    })),
  };
}

function fromNow(
  request: RequestView,
  now_ms: number,
): SharedDeviceView['instances'][number]['requests'][number] {
  const { id, input_tokens, output_tokens, expected_output_tokens, prefill_tokens_left, service_level } =
    request;
  const view: SharedDeviceView['instances'][number]['requests'][number] = {
    id,
    arrival_ms: request.arrival_ms - now_ms,
    input_tokens,
    output_tokens,
    expected_output_tokens,
    prefill_tokens_left,
    available_at_ms: Math.max(0, request.available_at_ms - now_ms),
    service_level: { ...service_level },
  };
  if (request.first_token_ms !== undefined) view.first_token_ms = request.first_token_ms - now_ms;
  if (request.background !== undefined) view.background = request.background;
  return view;
}
