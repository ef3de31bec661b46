import { constants } from 'node:os';

/** Thrown where a command ran on another machine: its words are shown already, only its exit code is left. */
export class RemoteExit extends Error {
  readonly exit_code: number;

  constructor(exit_code: number) {
    super(`it ended with exit code ${exit_code} on another machine`);
    this.exit_code = exit_code;
  }
}

/** As a shell has it: 128 plus the signal where one ended the program. */
export function exitCodeOf({ code, signal }: { code: number; signal?: string }): number {
  const number = constants.signals[signal as NodeJS.Signals];
  return number === undefined ? code : 128 + number;
}
