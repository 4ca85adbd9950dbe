import type { IDisposable } from '@lumino/disposable';
import { type ISignal, Signal } from '@lumino/signaling';

import { type Api, ApiError } from '../api';
import type { ICheck, ICluster, IFormDescription, IKernel, Options } from '../contract';
import type { IClusterLookup } from '../model/clusters';
import { DebouncedRequest } from './debouncedRequest';
import { initialValues, KERNEL, startOptions, type Values } from './values';

/** Milliseconds between the last change of a value and its check. */
export const CHECK_DELAY = 400;

/** The failure of a request or of a start. */
export interface IFailure {
  message: string;
  log: string;
}

/** The requests of a form. */
export type IFormSource = Pick<Api, 'form' | 'kernels' | 'check' | 'start' | 'dismiss'>;

/** The values of a form, their check by the server, and the start, without any view. */
export class FormModel implements IDisposable {
  constructor(
    private readonly source: IFormSource,
    private readonly clusters: IClusterLookup,
    delay = CHECK_DELAY
  ) {
    this.checks = new DebouncedRequest<Options, ICheck>({
      send: (options, signal) => source.check(options, signal),
      onReply: check => {
        this._checkFailure = null;
        this.setCheck(check);
      },
      onError: error => {
        this._checkFailure = toFailure(error);
        this.setCheck({ errors: {}, script: null });
      },
      delay
    });
  }

  /** Emitted when anything has changed. */
  get changed(): ISignal<this, void> {
    return this._changed;
  }

  /** The description of the form; null: not loaded yet. */
  get form(): IFormDescription | null {
    return this._form;
  }

  /** The kernels that run Python; null: not loaded yet. */
  get kernels(): readonly IKernel[] | null {
    return this._kernels;
  }

  get values(): Values {
    return this._values;
  }

  /** The errors of the last check by the names of fields; without a name: of no field. */
  get errors(): Readonly<Record<string, string>> {
    return this.lastCheck.errors;
  }

  /** The job script of the last check. */
  get script(): string | null {
    return this.lastCheck.script;
  }

  /** The last job script: shown until there is another one. Empty: there was none. */
  get lastScript(): string {
    return this._lastScript;
  }

  /** Whether a check of the values is under way. */
  get isChecking(): boolean {
    return this.checks.isPending;
  }

  /** The selected kernel, if it has no workbench. */
  get unusableKernel(): IKernel | undefined {
    const name = this._values[KERNEL];
    return this._kernels?.find(kernel => kernel.name === name && kernel.version === null);
  }

  /** The selected kernel, if the server does not list it; empty: the server does. */
  get unlistedKernel(): string {
    const name = this._values[KERNEL] ?? '';
    return this._kernels?.every(kernel => kernel.name !== name) ? name : '';
  }

  /** Whether a start is under way: the values cannot change meanwhile. */
  get isStarting(): boolean {
    return this._isStarting;
  }

  /** The start that the server has accepted, by its id: it goes on without this form. Empty: there is none. */
  get startId(): string {
    return this._startId;
  }

  /** The cluster of that start, once it has a record; an older one of the same name is another. */
  get cluster(): ICluster | undefined {
    const start = this.clusters.findStart(this._startId);
    const cluster = this.clusters.cluster(start?.name ?? '');
    return start && cluster && cluster.created >= start.since ? cluster : undefined;
  }

  /** Whether the cluster is ready. */
  get isComplete(): boolean {
    return this._isComplete;
  }

  /** Whether the form can be submitted. */
  get canStart(): boolean {
    const isFree = this._form !== null && !this._isStarting && !this.unusableKernel;
    return isFree && Object.keys(this.errors).length === 0;
  }

  /** Why the last start, or the last request, has failed. */
  get failure(): IFailure | null {
    return this._failure ?? this._checkFailure;
  }

  /** Whether the description is being loaded. */
  get isLoading(): boolean {
    return this._isLoading;
  }

  /** Load the description, and restore remembered values. */
  async load(remembered: unknown): Promise<void> {
    this.remembered = remembered;
    this._isLoading = true;
    const kernelsLoaded = this.loadKernels();
    try {
      this._form = await this.source.form();
    } catch (error) {
      this._failure = toFailure(error);
    }
    this._isLoading = false;
    if (this._form === null) {
      this.emit();
      return;
    }
    this._values = initialValues(this._form, remembered);
    this.checks.invoke(startOptions(this._form, this._values));
    this.emit();
    if ((await kernelsLoaded) && this.unlistedKernel !== '') {
      // it was removed since it was remembered
      this.set(KERNEL, '');
    }
  }

  /** Load the description again, after a failure. */
  async reload(): Promise<void> {
    this._failure = null;
    const loaded = this.load(this.remembered);
    this.emit();
    await loaded;
  }

  /** Set a value. */
  set(name: string, value: string): void {
    if (this._form && !this._isStarting) {
      this._values = { ...this._values, [name]: value };
      this.checks.invoke(startOptions(this._form, this._values));
      this.emit();
    }
  }

  /**
   * Submit the form.
   *
   * Resolves when the server has accepted the start, or the form shows why it did not.
   *
   * @throws {@link ApiError} if the server refuses a start whose form was closed meanwhile.
   */
  async start(): Promise<void> {
    const form = this._form;
    if (form === null || this._isStarting) {
      return;
    }
    this._isStarting = true;
    this._failure = null;
    this.emit();
    try {
      // the user may press Enter, and close the form, before the check has ended
      await this.checks.flush();
      if (Object.keys(this.errors).length === 0 && !this.unusableKernel) {
        await this.submit(startOptions(form, this._values));
        return;
      }
    } catch (error) {
      if (this._isDisposed) {
        throw error;
      }
      this._failure = toFailure(error);
    }
    this._isStarting = false;
    this.emit();
  }

  /**
   * Follow a start that the server has accepted.
   *
   * @param isRestored - Whether that was on an earlier visit: if the server does not know the start, it is over.
   */
  trackStart(id: string, isRestored = false): void {
    this._startId = id;
    this._isStarting = true;
    this.wasKnown = isRestored;
    this.isCancelled = false;
    this.clusters.changed.connect(this.updateStart);
    this.updateStart();
  }

  /** Cancel the start that the server has accepted. */
  async cancel(): Promise<void> {
    const id = this._startId;
    this._failure = null;
    try {
      await this.source.dismiss(id);
    } catch (error) {
      if (!(error instanceof ApiError && error.status === 404)) {
        this._failure = toFailure(error);
        this.emit();
        return;
      } // it is over already
    }
    // the start may have failed before the answer, and another one may be under way
    if (id === this._startId) {
      this.isCancelled = true;
      this.updateStart();
    }
  }

  get isDisposed(): boolean {
    return this._isDisposed;
  }

  dispose(): void {
    this._isDisposed = true;
    this.checks.dispose();
    this.clusters.changed.disconnect(this.updateStart);
    Signal.clearData(this);
  }

  private async submit(options: Options): Promise<void> {
    if (this.failedStart !== null) {
      // this form has shown the failure, and the user submits again
      this.source.dismiss(this.failedStart).catch(() => undefined);
      this.failedStart = null;
    }
    const { id } = await this.source.start(options);
    if (!this._isDisposed) {
      this.trackStart(id);
    }
  }

  private readonly updateStart = (): void => {
    const start = this.clusters.findStart(this._startId);
    // the response to the request may come before the model knows the start
    this.wasKnown ||= start !== undefined;
    const isLeft = this.isCancelled || (this.wasKnown && this.clusters.connectionState === 'live');
    const isGone = !start && isLeft;
    if (isGone || (start && start.state !== 'starting')) {
      this.clusters.changed.disconnect(this.updateStart);
      this._startId = '';
      this._isStarting = false;
      this._isComplete = start?.state === 'ready';
    }
    if (start?.state === 'failed') {
      this.failedStart = start.id;
      this._failure = { message: start.message, log: start.log };
    }
    this.emit();
  };

  private async loadKernels(): Promise<boolean> {
    let isLoaded = true;
    try {
      this._kernels = await this.source.kernels();
    } catch (error) {
      isLoaded = false;
      this._kernels = [];
      this._failure = toFailure(error);
    }
    this.emit();
    return isLoaded;
  }

  private setCheck(check: ICheck): void {
    this.lastCheck = check;
    this._lastScript = check.script ?? this._lastScript;
    this.emit();
  }

  private emit(): void {
    if (!this._isDisposed) {
      this._changed.emit();
    }
  }

  private readonly checks: DebouncedRequest<Options, ICheck>;
  private remembered: unknown;
  private lastCheck: ICheck = { errors: {}, script: null };
  // whether the model knew the start
  private wasKnown = false;
  // whether the server has canceled the start: the form no longer waits for it
  private isCancelled = false;
  // the start that has failed in this form
  private failedStart: string | null = null;
  private _form: IFormDescription | null = null;
  private _kernels: readonly IKernel[] | null = null;
  private _values: Values = {};
  private _lastScript = '';
  private _isLoading = true;
  private _isStarting = false;
  private _startId = '';
  private _isComplete = false;
  private _isDisposed = false;
  private _failure: IFailure | null = null;
  private _checkFailure: IFailure | null = null;
  private readonly _changed = new Signal<this, void>(this);
}

function toFailure(error: unknown): IFailure {
  return {
    message: error instanceof Error ? error.message : String(error),
    log: (error instanceof ApiError ? error.log : null) ?? ''
  };
}
