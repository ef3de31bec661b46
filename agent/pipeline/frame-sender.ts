import type { Socket } from 'node:net';
import { meeting_ms } from '../transfer/limits.ts';
import type { LentMemory } from '../transfer/messages.ts';
import {
  becauseOf,
  type FabricMeta,
  FabricOutbox,
  type FabricPlace,
  fabricMetaSchema,
  usableFabrics,
} from './fabric-frames.ts';
import { fabricNotice } from './fabric-notice.ts';
import { type Frame, type FrameBytes, metaOf } from './frame.ts';
import { takenMetaSchema } from './frame-room.ts';
import { ProviderChoice } from './provider-choice.ts';
import { type GreetingMeta, ringFrame } from './ring-frame.ts';
import type { OwnNews } from './ring-messages.ts';
import { FrameOutbox, mappedMetaSchema } from './shared-frames.ts';

/** What is to be written to the connection, once it is ready and nothing is before it. */
interface Outgoing {
  bytes: FrameBytes;
  isReady: boolean;
}

/** A provider that is being tried: asked for, then connected. */
interface Trial {
  readonly provider: string;
  readonly timer: NodeJS.Timeout;
  isConnecting: boolean;
  outbox: FabricOutbox | undefined;
}

/**
 * The end of a connection from which frames go to the stage behind, in order, each by the best way there is: memory
 * that both have mapped (one node), memory that the other lends (a fabric between nodes), or the connection itself.
 */
export class FrameSender {
  readonly #socket: Socket;
  readonly #fabrics: FabricPlace | undefined;
  readonly #tell: (news: OwnNews) => void;
  /** Those that both stages may use. */
  readonly #providers: ProviderChoice;
  #shared: FrameOutbox | undefined;
  #fabric: FabricOutbox | undefined;
  #trial: Trial | undefined;
  #again: NodeJS.Timeout | undefined;
  readonly #queue: Outgoing[] = [];
  #closed = false;

  /** @param greeting of the stage behind; absent: it is of an earlier version, and takes what comes alone */
  constructor(
    socket: Socket,
    greeting: GreetingMeta | undefined,
    fabrics: FabricPlace | undefined,
    tell: (news: OwnNews) => void,
  ) {
    this.#socket = socket;
    this.#fabrics = fabrics;
    this.#tell = tell;
    const both = usableFabrics(fabrics).filter((name) => greeting?.fabrics?.includes(name));
    this.#providers = new ProviderChoice(both);
    if (greeting) this.#shared = FrameOutbox.open();
    if (this.#shared) socket.write(ringFrame('shared', this.#shared.told));
    else this.#try();
  }

  send(frame: FrameBytes): void {
    const shared = this.#shared?.put(frame);
    if (shared) {
      this.#pass(ringFrame('parcel', shared));
      return;
    }
    const put = this.#fabric?.put(frame);
    if (!put) {
      this.#pass(frame);
      return;
    }
    const outgoing = { bytes: ringFrame('parcel', put.parcel), isReady: false };
    this.#queue.push(outgoing);
    void this.#passOnce(put.written, outgoing, frame);
  }

  /**
   * What the stage behind says of its ways.
   * @throws HpcserveError E_STAGE_FRAME
   */
  answered(frame: Frame): void {
    if (frame.kind === 'taken') {
      const { end } = metaOf(frame, takenMetaSchema);
      (this.#shared ?? this.#fabric)?.taken(end);
      return;
    }
    if (frame.kind === 'fabric') {
      this.#said(metaOf(frame, fabricMetaSchema));
      return;
    }
    const { mapped } = metaOf(frame, mappedMetaSchema);
    // Said once more, it changes nothing.
    if (!this.#shared || this.#shared.isMapped) return;
    if (mapped) {
      this.#shared.isMapped = true;
      this.#tell({ type: 'way', way: 'memory' });
    } else {
      this.#unshare();
      this.#try();
    }
  }

  close(): void {
    this.#closed = true;
    clearTimeout(this.#again);
    this.#unshare();
    this.#leaveTrial();
    void this.#fabric?.close();
    this.#fabric = undefined;
  }

  #unshare(): void {
    this.#shared?.close();
    this.#shared = undefined;
  }

  /** Behind what is still being written: frames keep their order. */
  #pass(bytes: FrameBytes): void {
    if (this.#queue.length === 0) this.#socket.write(bytes);
    else this.#queue.push({ bytes, isReady: true });
  }

  async #passOnce(written: Promise<void>, outgoing: Outgoing, frame: FrameBytes): Promise<void> {
    try {
      await written;
    } catch (error) {
      // It is not there: it goes over the connection, in its place.
      outgoing.bytes = frame;
      this.#broke(becauseOf(error));
    }
    outgoing.isReady = true;
    while (this.#queue[0]?.isReady) this.#socket.write(this.#queue.shift()!.bytes);
  }

  #broke(because: string): void {
    const fabric = this.#fabric;
    // Told by the first frame that failed.
    if (!fabric) return;
    this.#fabric = undefined;
    void fabric.close();
    if (this.#closed) return;
    const { provider } = fabric;
    this.#tellBroken(provider, because);
    this.#write({ step: 'closed', provider });
    this.#providers.leaveOut(provider, performance.now());
    this.#try();
  }

  /** The best provider that has not just failed; where there is none, once one may be tried again. */
  #try(): void {
    const now_ms = performance.now();
    const provider = this.#providers.next(now_ms);
    if (provider === undefined) {
      const wait_ms = this.#providers.wait_ms(now_ms);
      if (wait_ms !== undefined) this.#again = setTimeout(() => this.#try(), wait_ms).unref();
      return;
    }
    const timer = setTimeout(
      () => this.#failedTrial(trial, 'the stage behind did not answer'),
      2 * meeting_ms,
    );
    const trial: Trial = { provider, timer: timer.unref(), isConnecting: false, outbox: undefined };
    this.#trial = trial;
    this.#write({ step: 'ask', provider });
  }

  /** Of a provider that is not tried any more, nothing is of interest. */
  #said(meta: FabricMeta): void {
    const trial = this.#trial;
    if (!trial || meta.provider !== trial.provider) return;
    if (meta.step === 'lent' && !trial.isConnecting) void this.#connect(trial, meta.address);
    else if (meta.step === 'refused') this.#failedTrial(trial, meta.because);
    else if (meta.step === 'ready' && trial.outbox) {
      clearTimeout(trial.timer);
      this.#trial = undefined;
      this.#fabric = trial.outbox;
      this.#tell({ type: 'way', way: trial.outbox.description, provider: trial.provider });
    }
  }

  async #connect(trial: Trial, address: LentMemory): Promise<void> {
    const { provider } = trial;
    trial.isConnecting = true;
    let outbox: FabricOutbox;
    try {
      outbox = await FabricOutbox.connect(provider, this.#fabrics!.host, address);
    } catch (error) {
      this.#failedTrial(trial, becauseOf(error));
      return;
    }
    if (this.#trial === trial) {
      trial.outbox = outbox;
      this.#write({ step: 'probe', provider, probe: outbox.probe });
    } else await outbox.close();
  }

  #failedTrial(trial: Trial, because: string): void {
    if (this.#trial !== trial) return;
    const { provider } = trial;
    this.#leaveTrial();
    this.#write({ step: 'closed', provider });
    // A node has one of those that it may have, as a rule.
    if (this.#fabrics!.are_named) {
      this.#tellBroken(provider, because);
      this.#providers.leaveOut(provider, performance.now());
    } else this.#providers.giveUp(provider);
    this.#try();
  }

  #leaveTrial(): void {
    clearTimeout(this.#trial?.timer);
    void this.#trial?.outbox?.close();
    this.#trial = undefined;
  }

  /** Behind the parcels of what was written before, and in order itself. */
  #write(meta: FabricMeta): void {
    this.#pass(ringFrame('fabric', meta));
  }

  #tellBroken(provider: string, because: string): void {
    this.#tell(fabricNotice(provider, 'to the stage behind', because));
  }
}
