/** What a rule of style is. The rules themselves, one a file, are in `rules/`; `index.ts` lists them. */
import type { SourceFile } from 'typescript';
import { productRooms } from '../dependency-rules.ts';

/** A source file of the project that was parsed; `path` is from the root, with slashes. */
export interface ParsedFile {
  path: string;
  source: SourceFile;
}

export interface Finding {
  path: string;
  line: number;
  /** The name, or the beginning of the text, that breaks the rule. */
  what: string;
}

export interface StyleRule {
  /** Its key in `.ci/style-exceptions.json`. */
  name: string;
  /** What is to be written instead: one sentence for whoever reads the failure. */
  instead: string;
  find(files: readonly ParsedFile[]): Finding[];
}

export const roomOf = (path: string): string => path.slice(0, path.indexOf('/'));
export const isProduct = ({ path }: ParsedFile): boolean => productRooms.includes(roomOf(path));
export const isSuite = ({ path }: ParsedFile): boolean => path.endsWith('.test.ts');

/** A finding at a position of a file's text. */
export function findingAt({ path, source }: ParsedFile, position: number, what: string): Finding {
  return { path, line: source.getLineAndCharacterOfPosition(position).line + 1, what };
}
