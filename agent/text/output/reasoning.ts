import { longestOverlap } from './stop-strings.ts';

export const reasoningOpen = '<think>';
export const reasoningClose = '</think>';
export const reasoningMarks = [reasoningOpen, reasoningClose] as const;

export interface SplitText {
  reasoning: string;
  content: string;
}

/**
 * Splits what a reasoning model writes between `<think>` and `</think>` from its answer. Reasoning stands
 * at the beginning or nowhere; line breaks around the marks belong to neither part.
 */
export class ReasoningSplitter {
  #state: 'before' | 'reasoning' | 'content';
  #held = '';
  /** Set after a mark: line breaks that follow it are dropped. */
  #trimStart = false;

  /** @param opened whether the prompt already ends with `<think>`. */
  constructor(opened: boolean) {
    this.#state = opened ? 'reasoning' : 'before';
    this.#trimStart = opened;
  }

  push(piece: string): SplitText {
    const split: SplitText = { reasoning: '', content: '' };
    this.#held += piece;
    if (this.#state === 'before') {
      const text = this.#held.trimStart();
      if (text.startsWith(reasoningOpen)) {
        this.#held = text.slice(reasoningOpen.length);
        this.#state = 'reasoning';
        this.#trimStart = true;
      } else if (!reasoningOpen.startsWith(text)) {
        this.#state = 'content';
      } else return split;
    }
    if (this.#state === 'reasoning') {
      const close = this.#held.indexOf(reasoningClose);
      if (close < 0) {
        split.reasoning = this.#release(this.#reasoningHold());
        return split;
      }
      split.reasoning = this.#trim(this.#held.slice(0, close)).trimEnd();
      this.#held = this.#held.slice(close + reasoningClose.length);
      this.#state = 'content';
      this.#trimStart = true;
    }
    split.content = this.#release(0);
    return split;
  }

  end(): SplitText {
    const rest = this.#held;
    this.#held = '';
    if (this.#state === 'reasoning') return { reasoning: this.#trim(rest), content: '' };
    return { reasoning: '', content: this.#trim(rest) };
  }

  /** White space at the end is withheld too: it is dropped where the mark follows. */
  #reasoningHold(): number {
    const overlap = longestOverlap(this.#held, [reasoningClose]);
    const body = this.#held.slice(0, this.#held.length - overlap);
    return this.#held.length - body.trimEnd().length;
  }

  #release(keep: number): string {
    const ready = this.#held.slice(0, this.#held.length - keep);
    this.#held = this.#held.slice(this.#held.length - keep);
    return this.#trim(ready);
  }

  #trim(text: string): string {
    if (!this.#trimStart) return text;
    const trimmed = text.trimStart();
    if (trimmed.length > 0) this.#trimStart = false;
    return trimmed;
  }
}

/** Whether a rendered prompt leaves the model inside of its reasoning. */
export function promptOpensReasoning(prompt: string): boolean {
  return prompt.trimEnd().endsWith(reasoningOpen);
}

/** Whether a chat template belongs to a model that reasons in these marks. */
export function templateReasons(template: string): boolean {
  return template.includes(reasoningClose);
}
