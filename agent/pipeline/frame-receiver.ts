import type { Socket } from 'node:net';
import {
  becauseOf,
  FabricInbox,
  type FabricMeta,
  type FabricPlace,
  fabricMetaSchema,
  usableFabrics,
} from './fabric-frames.ts';
import { fabricNotice } from './fabric-notice.ts';
import { damaged, decodeFrame, type FrameBytes, kindOf, metaOf, noteChecked } from './frame.ts';
import { parcelMetaSchema } from './frame-room.ts';
import type { ProviderChoice } from './provider-choice.ts';
import { type GreetingMeta, ringFrame } from './ring-frame.ts';
import type { OwnNews } from './ring-messages.ts';
import { FrameInbox, sharedMetaSchema } from './shared-frames.ts';

/** The end of a connection to which frames come from the stage before, whichever way they take (`FrameSender`). */
export class FrameReceiver {
  readonly #socket: Socket;
  readonly #fabrics: FabricPlace | undefined;
  readonly #damaging: ProviderChoice;
  readonly #tell: (news: OwnNews) => void;
  #shared: FrameInbox | undefined;
  #fabric: FabricInbox | undefined;
  /** Counts what was asked for: of two, the later one is meant. */
  #asked = 0;
  #closed = false;

  /** @param damaging of `usableFabrics`; it outlives the connection */
  constructor(
    socket: Socket,
    fabrics: FabricPlace | undefined,
    damaging: ProviderChoice,
    tell: (news: OwnNews) => void,
  ) {
    this.#socket = socket;
    this.#fabrics = fabrics;
    this.#damaging = damaging;
    this.#tell = tell;
    const greeting: GreetingMeta = { shares: true };
    const usable = damaging.all(performance.now());
    if (usable.length > 0) greeting.fabrics = usable;
    tell({ type: 'way', way: 'connection' });
    for (const provider of usableFabrics(fabrics))
      if (!usable.includes(provider)) this.#tellDamaging(provider);
    socket.write(ringFrame('alive', greeting));
  }

  /**
   * @returns the frame that came; undefined: it was about the connection
   * @throws HpcserveError E_STAGE_FRAME
   */
  take(bytes: FrameBytes): FrameBytes | undefined {
    switch (kindOf(bytes)) {
      case 'alive':
        return undefined;
      case 'shared': {
        const told = metaOf(decodeFrame(bytes), sharedMetaSchema);
        this.#shared?.close();
        this.#shared = undefined;
        this.#shared = FrameInbox.open(told);
        this.#socket.write(ringFrame('shared', { mapped: this.#shared !== undefined }));
        return undefined;
      }
      case 'fabric':
        this.#said(metaOf(decodeFrame(bytes), fabricMetaSchema));
        return undefined;
      case 'parcel':
        return this.#unpack(bytes);
      default:
        return bytes;
    }
  }

  /** Called at times. */
  rest(): void {
    this.#fabric?.rest();
  }

  close(): void {
    this.#closed = true;
    this.#shared?.close();
    this.#shared = undefined;
    this.#leaveFabric();
  }

  #unpack(bytes: FrameBytes): FrameBytes {
    const parcel = metaOf(decodeFrame(bytes), parcelMetaSchema);
    const inbox = this.#shared ?? this.#fabric;
    if (!inbox) throw damaged('a parcel came where no memory is shared');
    const frame = inbox.take(parcel);
    if (inbox === this.#fabric) this.#requireWhole(inbox, frame);
    this.#socket.write(ringFrame('taken', { end: parcel.end }));
    return frame;
  }

  /** Here, where it is known how it came: a fabric that damages frames is offered to nobody for a while. */
  #requireWhole({ provider }: FabricInbox, frame: FrameBytes): void {
    try {
      decodeFrame(frame);
    } catch (error) {
      this.#damaging.leaveOut(provider, performance.now());
      this.#tellDamaging(provider);
      throw error;
    }
    noteChecked(frame);
  }

  #tellDamaging(provider: string): void {
    const because = 'a frame came with other bytes than were sent';
    this.#tell(fabricNotice(provider, 'from the stage before', because));
  }

  #said(meta: FabricMeta): void {
    if (meta.step === 'ask') void this.#lend(meta.provider);
    else if (meta.step === 'probe') void this.#check(meta.provider, meta.probe);
    else if (meta.step === 'closed') this.#leaveFabric();
  }

  async #lend(provider: string): Promise<void> {
    this.#leaveFabric();
    const asked = this.#asked;
    try {
      if (!this.#damaging.all(performance.now()).includes(provider))
        throw new Error(`the provider ${provider} is not used here`);
      const inbox = await FabricInbox.open(provider, this.#fabrics!.host);
      if (this.#closed || asked !== this.#asked) {
        await inbox.close();
        return;
      }
      this.#fabric = inbox;
      this.#write({ step: 'lent', provider, address: inbox.address });
    } catch (error) {
      this.#write({ step: 'refused', provider, because: becauseOf(error) });
    }
  }

  async #check(provider: string, probe: string): Promise<void> {
    try {
      if (this.#fabric?.provider !== provider) throw new Error(`nothing is lent by ${provider}`);
      await this.#fabric.connected(probe);
      this.#write({ step: 'ready', provider });
    } catch (error) {
      this.#write({ step: 'refused', provider, because: becauseOf(error) });
    }
  }

  #leaveFabric(): void {
    this.#asked++;
    void this.#fabric?.close();
    this.#fabric = undefined;
  }

  #write(meta: FabricMeta): void {
    if (!this.#closed) this.#socket.write(ringFrame('fabric', meta));
  }
}
