import { longestOverlap } from '../output/stop-strings.ts';
import type { CallProgress, CallText } from './call-reader.ts';

const idMark = '[CALL_ID]';
const argumentsMark = '[ARGS]';
export const markedCallMarks = [argumentsMark, idMark] as const;

/** What stands before a call's arguments, or the beginning of that: a name, and an id where there is one. */
const head = /^[\w.-]{0,128}(\[CALL_ID\][\w-]{0,64})?$/;

/**
 * Reads one call in the form that Mistral's models have from version 11 of their tokenizer on, letter by letter:
 * `name[ARGS]{…}`, or `name[CALL_ID]id[ARGS]{…}`. The id is the model's own and is not passed on.
 */
export class MarkedCallReader implements CallText {
  state: CallText['state'] = 'reading';
  raw = '';
  #head = '';
  #name: string | undefined;
  #nameSent = false;
  #depth = 0;
  #inString = false;
  #escaped = false;

  get started(): boolean {
    return this.#nameSent;
  }

  read(text: string): { length: number; progress: CallProgress } {
    let length = 0;
    let argumentsText = '';
    for (const character of text) {
      if (this.state !== 'reading' || (this.#name !== undefined && !this.#nameSent)) break;
      length += character.length;
      this.raw += character;
      if (this.#name === undefined) this.#readHead(character);
      else if (this.#depth > 0 || !/\s/.test(character)) argumentsText += this.#readArguments(character);
    }
    const progress: CallProgress = {};
    if (this.#name !== undefined && !this.#nameSent) {
      progress.name = this.#name;
      this.#nameSent = true;
    }
    if (argumentsText !== '') progress.arguments = argumentsText;
    return { length, progress };
  }

  #readHead(character: string): void {
    this.#head += character;
    if (this.#head.endsWith(argumentsMark)) {
      const [name] = this.#head.slice(0, -argumentsMark.length).split(idMark);
      if (name === '') this.state = 'invalid';
      else this.#name = name;
      return;
    }
    const known = this.#head.slice(0, this.#head.length - longestOverlap(this.#head, markedCallMarks));
    if (!head.test(known)) this.state = 'invalid';
  }

  /** @returns the character where it belongs to the arguments. */
  #readArguments(character: string): string {
    if (this.#depth === 0 && character !== '{') {
      this.state = 'invalid';
      return '';
    }
    if (this.#inString) {
      if (this.#escaped) this.#escaped = false;
      else if (character === '\\') this.#escaped = true;
      else if (character === '"') this.#inString = false;
    } else if (character === '"') this.#inString = true;
    else if (character === '{' || character === '[') this.#depth++;
    else if ((character === '}' || character === ']') && --this.#depth === 0) this.state = 'done';
    return character;
  }
}
