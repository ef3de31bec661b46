import { type CandidateRequests, requestsAt } from '../../solver/routing/candidate.ts';
import { sloOf } from '../../solver/sharing/slo.ts';
import { describedLink, type HostLink } from '../../solver/streaming/host-link.ts';
import { type LinkUse, linkUse, type ToldDevice } from '../../solver/streaming/request-load.ts';
import type { SessionModel, SessionRecord } from '../../spec/session-record.ts';
import type { StreamedWeights } from '../../spec/streamed-weights.ts';

/** A model of the device, as its replica has it. */
interface ModelOnLink extends CandidateRequests {
  readonly served: SessionModel;
  readonly streamed: StreamedWeights | undefined;
  readonly compute_ms: number | undefined;
}

/** The device of a native session as a reader of host memory, with all that this gateway knows to share its link. */
export class DeviceOnLink {
  /** Names the link among all that this gateway knows. */
  readonly link: string;
  readonly record: SessionRecord;
  readonly #replicas: readonly ModelOnLink[];
  readonly #shared: string | undefined;
  /** This one included. */
  #all: readonly DeviceOnLink[] = [this];
  #assumed: { link: HostLink | undefined } | undefined;

  constructor(record: SessionRecord, replicas: readonly ModelOnLink[]) {
    const { devices, site, node } = record.metadata;
    this.record = record;
    this.#replicas = replicas;
    this.#shared = devices.length === 1 ? devices[0]!.link : undefined;
    this.link = this.#shared === undefined ? record.session_id : `${site}/${node}/${this.#shared}`;
  }

  /** Those of one link are told of each other. */
  static join(devices: Iterable<DeviceOnLink>): void {
    const byLink = new Map<string, DeviceOnLink[]>();
    for (const device of devices) {
      const known = byLink.get(device.link);
      if (known) known.push(device);
      else byLink.set(device.link, [device]);
    }
    for (const all of byLink.values()) for (const device of all) device.#all = all;
  }

  get node(): string {
    return this.record.metadata.node;
  }

  /** Of its link, for people: names it on its node. */
  get name(): string {
    return this.#shared ?? `of session ${this.record.session_id.slice(0, 8)}`;
  }

  /** It has a model whose weights lie in host memory. */
  get streams(): boolean {
    return this.#replicas.some(({ streamed }) => streamed !== undefined);
  }

  get use(): LinkUse {
    return linkUse(this.told().all);
  }

  /** What all of them tell. @param model that is looked at, whether it is in use or not */
  told(model?: string): { own: ToldDevice; all: readonly ToldDevice[] } {
    const all = this.#all.map((device) => device.#told(model));
    return { own: all[this.#all.indexOf(this)]!, all };
  }

  #told(model: string | undefined): ToldDevice {
    let reached = 0;
    const models: ToldDevice['models'][number][] = [];
    for (const replica of this.#replicas) {
      const { served, streamed, compute_ms } = replica;
      reached = Math.max(reached, streamed?.link_bytes_per_s_max ?? 0);
      const requests = requestsAt(replica);
      if (requests <= 0 && served.name !== model) continue;
      const { tpot_ms } = sloOf(served.slo ?? {}, 0);
      models.push({ model: served.name, requests, compute_ms, step_bytes: streamed?.step_bytes, tpot_ms });
    }
    const told: ToldDevice = { id: this.record.session_id, link: this.link, models };
    if (reached > 0) told.reached_bytes_per_s = reached;
    const assumed = this.#assumedLink();
    if (assumed) told.assumed = assumed;
    return told;
  }

  /** Looked up once, and where somebody asks. */
  #assumedLink(): HostLink | undefined {
    if (!this.#assumed) {
      const [device, ...others] = this.record.metadata.devices;
      this.#assumed = { link: device && others.length === 0 ? describedLink(device) : undefined };
    }
    return this.#assumed.link;
  }
}
