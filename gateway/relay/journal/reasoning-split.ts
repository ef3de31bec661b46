import type { ReasoningMember } from './answer-so-far.ts';
import { closing } from './reasoning-phase.ts';

/** Takes the rest of a reasoning apart from what comes behind it, as the engine's parser would have done. */
export class ReasoningSplit {
  readonly #member: ReasoningMember;
  /** What may be the beginning of the closing mark. */
  #held = '';
  #closed = false;

  constructor(member: ReasoningMember) {
    this.#member = member;
  }

  /** @param last nothing follows */
  next(text: string, last: boolean): Record<string, string> {
    if (this.#closed) return { content: text };
    const all = this.#held + text;
    const at = all.indexOf(closing);
    this.#closed = at !== -1;
    const kept = this.#closed || last ? 0 : beginningAtEnd(all, closing);
    this.#held = all.slice(all.length - kept);
    const thought = this.#closed ? all.slice(0, at) : all.slice(0, all.length - kept);
    const said = this.#closed ? all.slice(at + closing.length) : '';
    const delta: Record<string, string> = {};
    if (thought !== '') delta[this.#member] = thought;
    if (said !== '') delta.content = said;
    return delta;
  }
}

/** Characters at the end of a text that a mark begins with. */
function beginningAtEnd(text: string, mark: string): number {
  for (let length = Math.min(text.length, mark.length - 1); length > 0; length--)
    if (text.endsWith(mark.slice(0, length))) return length;
  return 0;
}
